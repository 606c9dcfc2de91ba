"""Makes a recording: a router under the recorder, its load, a kill of its broker, and its stop."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.crash_images import load
from tests.crash_images.connections import Ports
from tests.crash_images.facts import Fact, Facts, placed
from tests.crash_images.file_system import FileSystem
from tests.crash_images.recorder import SKIPPED_ENDINGS, TO_KILL
from tests.crash_images.recording import Event
from tests.crash_images.recording import load as load_events
from tests.ports import free_port
from tests.processes import wait_until
from tests.system.stack import ANNOUNCEMENT, Stack

REPOSITORY: Final = Path(__file__).resolve().parents[2]
REWRITTEN: Final = b"partition-cleaned"
"""What the broker logs when it has cleaned a compacted topic and written its segments again."""
STARTUP: Final = Path(__file__).resolve().parent / "startup"
SETTINGS: Final = {
    "storage_reserve": "0",
    "storage_journal": "24K",
    "storage_segment": "24K",
    "storage_cache": "64K",
    "consume_idle": "1s",
    "consume_empty_polls_per_minute": "0",
}


@dataclass(frozen=True)
class Recording:
    """What was written to the data folder, what clients know of it, and the files in the end."""

    events: list[Event]
    facts: list[Fact]
    left: dict[str, bytes]

    def replayed(self) -> dict[str, bytes]:
        """Return the files as the events leave them."""
        system = FileSystem()
        for event in self.events:
            system.take(event)
        return system.current().files

    def write(self, path: Path) -> None:
        """Keep it in a file."""
        path.write_bytes(pickle.dumps(self))

    @classmethod
    def read(cls, path: Path) -> Recording:
        """Read what `write` wrote."""
        found: Recording = pickle.loads(path.read_bytes())
        return found


class RecordedStack(Stack):
    """A stack whose processes run under the recorder."""

    def start(self) -> None:
        """Start and wait until the router says that it is ready."""
        (self.folder / "data").mkdir()
        command = [sys.executable, "-m", "tests.crash_images.recorder"]
        command += [str(self.folder / "data"), str(self.folder / "events")]
        command += [sys.executable, "-m", "router", "serve", "--port", str(self.port)]
        command += ["--data", str(self.folder / "data"), *self.flags]
        paths = os.pathsep.join([str(STARTUP), str(REPOSITORY)])
        written = self.folder / "serve.log"
        with written.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": paths} | self.environ,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + 60
        while ANNOUNCEMENT not in written.read_bytes():
            assert self.process.poll() is None, written.read_text()[-3000:]
            assert time.monotonic() < until, written.read_text()[-3000:]
            time.sleep(0.05)

    def kill_broker(self) -> None:
        """Have the recorder kill the broker, and wait until it is gone."""
        assert self.process is not None
        broker = self.broker()
        (self.folder / TO_KILL).write_text(str(broker))
        self.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: not Path(f"/proc/{broker}").exists())


def record(folder: Path, seed: str, *, steps: int = load.STEPS, planted: str = "") -> Recording:
    """Return the recording of a router that works in a new folder; `planted`: a fault's name."""
    ports = Ports(0, *(free_port() for _ in range(3)))
    listeners = {
        "broker_kafka": f"127.0.0.1:{ports.kafka}",
        "broker_nats": f"127.0.0.1:{ports.nats}",
        "broker_pulsar": f"127.0.0.1:{ports.pulsar}",
    }
    stack = RecordedStack(folder, "--workers", "1", **SETTINGS, **listeners)
    stack.environ["CRASH_IMAGES_PLANTED"] = planted
    facts = Facts()
    try:
        stack.start()
        stack.wait_ready()
        ports = Ports(stack.port, ports.kafka, ports.nats, ports.pulsar)
        workers = load.make_workers(ports, facts, seed)

        load.run(workers, steps, stack.kill_broker)
        stack.wait_ready()
        # After the kill as well: maintenance runs twice a second.
        wait_until(lambda: REWRITTEN in (folder / "serve.log").read_bytes())
    finally:
        stack.stop()
    events = load_events(folder / "events")
    return Recording(events, placed(facts.all, events), _files(folder / "data"))


def _files(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    recorded = (path for path in files if not path.name.endswith(SKIPPED_ENDINGS))
    return {str(path.relative_to(folder)): path.read_bytes() for path in recorded}
