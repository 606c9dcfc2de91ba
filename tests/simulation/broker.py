"""The broker as it ships, as one process of the simulation after the other on one data folder.

Its journal and segments are on the simulated disk. The SQLite databases and the files of stream
indexes are on a real folder in memory: each of their commits lasts, and an open one does not. Only
key indexes, which are not synced with each commit, lose what a power cut takes.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import zlib
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from struct import Struct
from typing import Any, Final

import structlog

from router.broker.compaction.indexes import FOLDER as KEYS
from router.broker.disk.faults import StoreError
from router.broker.folder import MARK
from router.broker.kafka import context as kafka_context
from router.broker.listeners import LISTENERS
from router.broker.nats import server as nats_server
from router.broker.running import RunningBroker
from router.broker.storage import journal
from router.broker.storage.append_turns import PendingGroup
from router.broker.storage.files import repair
from router.broker.transport import listener as transport_listener
from router.broker.transport.listener import Listeners
from router.process import node_socket
from router.settings import Settings, load
from tests.simulation import bounds, seeded
from tests.simulation.disk import Latency, SimulatedDisk
from tests.simulation.history import History
from tests.simulation.kafka_clients import MESSAGES
from tests.simulation.loop import Lane, ProcessLoop, Scheduler
from tests.simulation.network import FakeSocket, Network
from tests.simulation.seeded import CLOCK

FOLDER: Final = Path("data")
PORTS: Final = {"pulsar": 6650, "kafka": 9092, "nats": 4222}
NODE: Final = "node"
RESTART_SECONDS: Final = (0.1, 5.0)
MAX_HANDLES: Final = 200
KEYS_GONE: Final = 0.1
LOG_HEAD: Final = 32
"""Of a log of SQLite: synced before what follows."""
COPIED_FRAMES: Final = Struct("=I")
COPIED_AT: Final = 96
"""See https://www.sqlite.org/walformat.html#walidxfmt."""
SECTOR: Final = 512


class SimulatedWriter:
    """The journal's thread, as steps of the loop; see `router.broker.storage.journal`."""

    def __init__(self, write: Callable[[Any], bool | None]) -> None:
        self._write = write
        self._loop: Any = asyncio.get_running_loop()
        loop: Any = self._loop
        self._lane = Lane(loop, 1)
        self._is_running = True
        self._later: Any = None

    def start(self) -> None:
        """Begin to take groups."""

    def put(self, group: Any) -> None:
        if self._later is not None:
            self._later.cancel()
        if self._is_running:
            self._lane.submit(lambda: self._write(group), self._written)

    def _written(self, unsynced: Any, error: BaseException | None) -> None:
        assert error is None, error
        if unsynced is None:
            self._is_running = False
        elif unsynced:
            later, group = journal.RELAXED_SYNC_SECONDS, PendingGroup()
            self._later = self._loop.call_later(later, self.put, group)

    def stop(self) -> None:
        self._is_running = False


def install() -> None:
    """Have every broker of this process run in the simulation."""
    replaced: Any = journal
    replaced.WriterThread = SimulatedWriter
    replaced = transport_listener
    names = {port: name for name, port in PORTS.items()}
    replaced.bind = lambda address: FakeSocket(names[address.port], address.port)
    # It follows from the name of the host and of the folder.
    replaced = nats_server
    replaced._server_id = lambda _place: "SIMULATED"
    replaced = node_socket
    replaced.listen = lambda folder: FakeSocket(NODE if folder == FOLDER else str(folder))
    # It follows from when the files of a checkout were written.
    replaced = sys.modules[RunningBroker.__module__]
    replaced.build_id = lambda: "SIMULATED"
    # They are the same for each start, and take as much as a minute of its clients.
    replaced = kafka_context
    replaced.Messages = lambda _texts: MESSAGES


def settings_of(options: dict[str, str]) -> Settings:
    """Return the settings of a broker that serves all protocols."""
    fixed = {"data.dir": str(FOLDER)}
    fixed |= {f"broker.{name}": f"127.0.0.1:{port}" for name, port in PORTS.items()}
    return load(None, {}, fixed | options)


class Node:
    """The machine of the broker: its disk, and the process that runs now."""

    def __init__(
        self, seed: str, scheduler: Scheduler, network: Network, history: History, options: Settings
    ) -> None:
        self._seed, self._scheduler, self._network = seed, scheduler, network
        self._history, self._settings = history, options
        self.chance = Random(f"{seed}:node")
        self.latency = Latency(Random(f"{seed}:latency"))
        self.disk = SimulatedDisk(Random(f"{seed}:disk"), self.latency, self._note)
        self.disk.names[FOLDER] = self.disk.synced_names[FOLDER] = None
        self.loop: ProcessLoop | None = None
        self.boots = 0
        self.is_serving = False
        self.wants_to_run = True
        self.counts: dict[str, int] = {}
        self._stop: asyncio.Event | None = None
        self._broker: RunningBroker | None = None
        self._dead: list[asyncio.Task[Any]] = []
        FOLDER.mkdir(mode=0o700)

    def _note(self, event: str) -> None:
        self._history.trace("disk", event)

    def _count(self, event: str) -> None:
        self.counts[event] = self.counts.get(event, 0) + 1
        self._history.trace("node", event)

    def start(self) -> None:
        """Begin a process."""
        self.boots += 1
        self._count("start")
        loop = ProcessLoop(
            f"broker-{self.boots}", self._scheduler, Random(f"{self._seed}:broker:{self.boots}")
        )
        disk = self.disk
        loop.elapsed, loop.power_cut, loop.on_error = disk.take_elapsed, self.cut_power, self._error
        loop.serve = lambda factory, sock: self._network.listen(loop, factory, sock)
        self.loop, self.is_serving = loop, False
        self._history.booted(self.boots)
        loop.call_soon(lambda: loop.create_task(self._run(disk)))

    def start_later(self) -> None:
        """Begin a process as a supervisor does."""
        if self.wants_to_run:
            seconds = self.chance.uniform(*RESTART_SECONDS)
            self._network.loop.call_later(seconds, self._start_again)

    def _start_again(self) -> None:
        if self.loop is None:
            self.start()

    async def _run(self, disk: SimulatedDisk) -> None:
        loop: Any = asyncio.get_running_loop()
        try:
            async with AsyncExitStack() as stack:
                listeners = Listeners(LISTENERS, self._settings)
                broker = await RunningBroker.open(FOLDER, self._settings, listeners, stack, disk)
                await broker.serve(FOLDER)
                self.is_serving, self._broker = True, broker
                self._count("serve")
                stop = self._stop = asyncio.Event()
                stopping = loop.create_task(stop.wait())
                waits: set[Any] = {stopping, broker.failed}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                self.is_serving = False
                stopping.cancel()
                if not broker.failed.done():
                    await broker.drain()
                if broker.failed.done():
                    self._count("store failed")
                    self._history.trace("store", repr(broker.failed.result()))
                await broker.close()
                failed = broker.failed.done()
        except StoreError as error:
            self._history.trace("not opened", str(error))
            self._count("not opened")
            failed = True
        for _ in range(10):
            await asyncio.sleep(0)
        if not failed:
            self._check_end(loop, disk)
        self._ended(loop)

    def _check_end(self, loop: ProcessLoop, disk: SimulatedDisk) -> None:
        of: Any = loop
        own = asyncio.current_task(of)
        left = [task for task in asyncio.all_tasks(of) if task is not own and not task.done()]
        if left:
            self._history.violation("a task outlives its broker", repr(sorted(map(repr, left))))
        if disk.handles:
            self._history.violation("open files at the end", repr(sorted(disk.handles)))
        if disk.max_handles > MAX_HANDLES:
            self._history.violation("too many open files", str(disk.max_handles))

    def _ended(self, loop: ProcessLoop) -> None:
        """Part with a process that ended by itself."""
        loop.kill()
        seeded.close_databases()
        self.disk = self.disk.reread()
        self._network.machine_went(self.chance)
        self.loop = None
        if (FOLDER / MARK).exists():
            self.repair()
        self.start_later()

    def stop(self) -> None:
        """Have the process end as SIGTERM does."""
        if self._stop is not None and self.is_serving:
            self._count("stop")
            self._stop.set()

    def tasks(self) -> set[asyncio.Task[Any]]:
        """Return the tasks of the process that do not last as long as it does."""
        return set() if self.loop is None else bounds.tasks_of(self.loop)

    def check_kept(self, before: set[asyncio.Task[Any]]) -> None:
        """Check what is held when the last client went long ago; `before`: some of the tasks."""
        if not self.is_serving or self._broker is None:
            self._history.violation("the broker does not serve at the end", "")
        elif found := bounds.kept(self._broker, self.disk, before & self.tasks()):
            self._history.violation("a broker keeps what nothing uses", repr(found))

    def kill(self) -> None:
        """End the process as kill -9 does."""
        if self.loop is not None:
            self._count("kill")
            self._go(self.disk.reread)

    def cut_power(self) -> None:
        """End the process and forget what was not synced."""
        if self.loop is not None:
            self._count("power cut")
            unsynced = unsynced_logs(FOLDER / KEYS)
            self._go(lambda: self.disk.crash(self.chance))
            damage_key_indexes(FOLDER / KEYS, unsynced, self.chance)

    def _go(self, next_disk: Callable[[], SimulatedDisk]) -> None:
        assert self.loop is not None
        self.loop.kill()
        # What a coroutine does when it is collected, a killed process does not do.
        of: Any = self.loop
        self._dead += asyncio.all_tasks(of)
        self.loop, self.is_serving, self._stop = None, False, None
        self.disk = next_disk()
        left = Path("left")
        shutil.copytree(FOLDER, left, ignore=shutil.ignore_patterns("*-shm"))
        seeded.close_databases()
        shutil.rmtree(FOLDER)
        left.rename(FOLDER)
        self._network.machine_went(self.chance)
        self.start_later()

    def repair(self) -> None:
        """Do what an operator does with a folder that is marked READ-ONLY."""
        self._count("repair")
        try:
            findings = repair(FOLDER, CLOCK.time, self.disk)
        except StoreError:
            if CLOCK.now < self.disk.unreadable_until:
                return  # the next start is refused, which has it tried again
            raise
        (FOLDER / MARK).unlink(missing_ok=True)
        seeded.close_databases()
        self._history.trace("repair", repr(findings))

    def pause(self, seconds: float) -> None:
        """Have the process stand still, as SIGSTOP does."""
        if self.loop is not None:
            self._count("pause")
            loop = self.loop
            loop.pause()
            self._network.loop.call_later(seconds, self._resume, loop)

    def _resume(self, loop: ProcessLoop) -> None:
        loop.resume()
        self._history.runs_since = CLOCK.now

    def _error(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._history.violation("a callback failed", f"{context.get('message')}: {error!r}")


def unsynced_logs(folder: Path) -> list[Path]:
    """Return the logs of key indexes of which only the head is known to be on disk.

    SQLite syncs a log before it copies it to the database, and begins it again after that. How many
    frames were copied stands in the shared memory of an open database.
    """
    found = []
    for path in sorted(folder.glob("*-shm")):
        (copied,) = COPIED_FRAMES.unpack_from(path.read_bytes(), COPIED_AT)
        log = path.with_name(path.name.replace("-shm", "-wal"))
        if not copied and log.exists() and log.stat().st_size > LOG_HEAD:
            found.append(log)
    return found


def damage_key_indexes(folder: Path, unsynced: Sequence[Path], chance: Random) -> None:
    """Have a power cut take what SQLite wrote to the logs of key indexes and did not sync.

    What is not synced arrives in any order. Now and then the folder is gone, which is made and not
    synced.
    """
    if folder.exists() and chance.random() < KEYS_GONE:
        shutil.rmtree(folder)
        return
    for path in unsynced:
        log = bytearray(path.read_bytes())
        odds = chance.choice((0.0, 0.0, 0.05, 0.5))
        for start in range(LOG_HEAD, len(log), SECTOR):
            if chance.random() < odds:
                log[start : start + SECTOR] = bytes(len(log[start : start + SECTOR]))
        if chance.random() < 0.5:
            del log[chance.randint(LOG_HEAD, len(log)) :]
        path.write_bytes(log)


def capture_log(history: History) -> None:
    """Have log lines go to the history: a traceback is a violation."""

    def take(_logger: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        line = f"{level} {event.get('event')}"
        if event.get("exc_info"):
            import traceback  # noqa: PLC0415 - for a failure

            history.violation("a traceback in the log", f"{event} {traceback.format_exc()}")
        elif level in {"error", "critical", "warning"}:
            history.trace("log", f"{line} {zlib.crc32(repr(event).encode())}")
            history.logged(str(event.get("event")))
        raise structlog.DropEvent

    structlog.configure(processors=[take], cache_logger_on_first_use=False)
