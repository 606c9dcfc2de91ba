"""Kill -9 of the broker while a pipeline and commands use its folder: `serve` keeps the folder.

A killed broker leaves the folder without one for a moment, in which all clients look for it:
workers, Spark's Python workers, commands of this build and of another one. SOAK_SUPERVISED_KILLS
asks for more kills.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import router
from router.broker.folder import LOCK
from tests.pipelines.quick import ready, unmeasured
from tests.processes import wait_until
from tests.system.stack import Stack, command_line
from tests.system.traffic import accepted, create, expect_kept, loaded, poll, read_all, started

KILLS = int(os.environ.get("SOAK_SUPERVISED_KILLS", "3"))
PATIENCE = 300.0

pytestmark = [
    pytest.mark.timeout(2 * PATIENCE + KILLS * 20),
    pytest.mark.java,
    pytest.mark.system,
    pytest.mark.slow,
]

DECLARED = """\
[source]
topics = ["orders"]
format = "text"

[[step]]
name = "copied"
sql = "SELECT value FROM records"

[[sink]]
kind = "topic"
from = "copied"
topic = "copies"

[resources]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.sql.shuffle.partitions" = 2
"""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with started(tmp_path, "--workers", "2") as found:
        create(found, "orders", 2)
        yield found


class Pipeline(threading.Thread):
    """A pipeline on the folder, which is run again when it ends, as by a supervisor of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        (folder / "copying.toml").write_text(DECLARED)
        self._folder = folder
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.runs = 0

    def run(self) -> None:
        """Run it until told to stop."""
        command = [sys.executable, "-P", "-m", "router", "pipeline", "run", "copying.toml"]
        with (self._folder / "pipeline.log").open("ab") as log:
            while not self._stopping.is_set():
                self.runs += 1
                with subprocess.Popen(
                    [*command, "--data", "data"], cwd=self._folder, stdout=log, stderr=log
                ) as self._process:
                    pass

    def end(self) -> None:
        """Stop it as a user does, and wait for its end."""
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
        self.join(PATIENCE)
        assert not self.is_alive()


class Polls(threading.Thread):
    """Polls a group of a topic, and keeps all that it is given."""

    def __init__(self, stack: Stack, topic: str) -> None:
        super().__init__(daemon=True)
        self._stack = stack
        self._path = f"{topic}/polls/c1"
        self._stopping = threading.Event()
        self.received: list[str] = []

    def run(self) -> None:
        """Poll until told to stop."""
        while not self._stopping.is_set():
            with contextlib.suppress(OSError):
                answer = poll(self._stack, self._path, 2.0)
                if answer.status == 200:
                    self.received += answer.json

    def end(self) -> None:
        """Stop after the poll under way."""
        self._stopping.set()
        self.join(PATIENCE)
        assert not self.is_alive()


def another_build(folder: Path) -> Path:
    """Return a folder with the package as another build."""
    package = folder / "other" / "router"
    shutil.copytree(Path(router.__file__).parent, package)
    with (package / "__init__.py").open("a") as text:
        text.write("# another build\n")
    return package.parent


def described(stack: Stack, package: Path | None) -> subprocess.CompletedProcess[str]:
    """Ask about a topic with a command of this build, or of another one."""
    elsewhere = {} if package is None else {"PYTHONPATH": str(package)}
    return subprocess.run(
        [sys.executable, "-P", "-m", "router", "topics", "describe", "orders", "--data", "data"],
        cwd=stack.folder,
        env=os.environ | elsewhere,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def in_charge(stack: Stack) -> bool:
    """Return whether the folder is held by a broker that `serve` started."""
    holder = int((stack.folder / "data" / LOCK).read_text())
    return holder == stack.broker() and "--stay" in command_line(holder)


@pytest.fixture
def pipeline(stack: Stack) -> Iterator[Pipeline]:
    """A pipeline that copies `orders` to `copies`, from the time when it did so once."""
    ready()
    copying = Pipeline(stack.folder)
    assert accepted(stack, "orders", "first")
    with unmeasured():
        copying.start()
        try:
            wait_until(lambda: copied(stack) or copying.runs > 1, PATIENCE)
            assert copying.runs == 1, (stack.folder / "pipeline.log").read_text()[-2000:]
            yield copying
        finally:
            copying.end()


def copied(stack: Stack) -> bool:
    """Return whether the first message is there."""
    answer = poll(stack, "copies/first/c1", 1.0)
    return answer.status == 200 and "first" in answer.json


def test_serve_keeps_the_folder_when_the_broker_is_killed_among_other_clients(
    stack: Stack, tmp_path: Path, pipeline: Pipeline
) -> None:
    other, chance = another_build(tmp_path), random.Random(7)
    polls = [Polls(stack, "orders"), Polls(stack, "copies")]
    for one in polls:
        one.start()
    with loaded(stack, "orders", publishers=1) as loads:
        for number in range(KILLS):
            time.sleep(chance.uniform(0.02, 1.0))
            os.kill(stack.broker(), signal.SIGKILL)
            answer = described(stack, other if number % 2 else None)
            assert answer.returncode == 0, answer.stderr
            assert stack.process is not None
            assert stack.process.poll() is None, (tmp_path / "serve.log").read_text()[-2000:]
            stack.wait_ready()
            assert in_charge(stack)
    stored = read_all(stack, "orders")
    expect_kept(loads, stored)
    for one in polls:
        wait_until(lambda one=one: set(stored) <= set(one.received), PATIENCE)  # type: ignore[misc]
        one.end()
    pipeline.end()
    assert sorted(read_all(stack, "copies")) == sorted(stored)
