"""The broker process of a node: what it is made of, how it starts, and how it ends.

Theory of operation. One process serves a data folder; the lock in the folder decides which
(router/broker/folder.py). It opens the store first and its sockets last, so that whoever reaches
it is served. It ends for one of four reasons, which `Ending` lists: a signal told it to; it was
started by a command (no `--stay`), and its last client left long enough ago, or a supervisor took
the folder (router/supervised.py); or the store failed. In the first three it stops accepting, lets
appends under way finish, and closes the store, so that the next start has nothing to recover. No
client can end it. After a failed write or sync it must not touch the store again: what the disk
holds then is for recovery to find out.

A failed store ends the process though reading might still go on, because only a new process may
trust what it reads back. The alternative, going on read-only, would serve pages that never reached
the disk.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import uvloop

from router import log, node_socket, supervised
from router.access.reloading import reload_all
from router.broker.admin import Admin
from router.broker.blacklist import Blacklist
from router.broker.counters import Counters
from router.broker.descriptors import raise_limit
from router.broker.folder import MARK, FolderBusyError, FolderError, exposed, hold
from router.broker.gate import Gate
from router.broker.keeping import Keeping, open_keeping
from router.broker.leases import Leases
from router.broker.ledger import StoreError
from router.broker.listening import ListenError, Listeners, bind, check
from router.broker.owners import Owners
from router.broker.pulsar import ListenerOptions, PulsarListener
from router.broker.registry import FileRegistry, RegistryDamagedError
from router.build import VERSION, build_id
from router.collecting import keep_loaded, settle
from router.coordination import Registry
from router.coordination.opening import Coordination, open_coordination
from router.errors import SettingError
from router.metrics import Sample
from router.quoting import said
from router.resources import Resources
from router.settings import Settings, without_password
from router.systemd import Notifier

LOG: Final = "broker.log"
PATIENCE: Final = 5.0
DRAIN: Final = 10.0
HANDOVER_SECONDS: Final = DRAIN + PATIENCE
"""Time in which a broker that was told to leave has left."""
LOOK: Final = 0.25

_STARTED: Final = time.time()  # noqa: TID251 - a time of day is shown, not counted with

_log = structlog.get_logger(__name__)


class Ending(Enum):
    """Why a broker ends, and with which status."""

    TOLD = os.EX_OK
    LEFT_ALONE = -1
    HANDED_OVER = -2
    STORE_FAILED = os.EX_IOERR

    @property
    def status(self) -> int:
        """Return the exit status of the process."""
        return max(0, self.value)


def run(settings: Settings, *, stay: bool) -> int:
    """Serve the folder of the settings until the end; return the exit status.

    What keeps it from starting is said in one sentence on standard error.
    """
    folder = Path(settings.text("data.dir"))
    log.begin("broker", settings.text("log.level"), settings.text("log.format"))
    raise_limit()
    try:
        check(settings)
        if not stay and supervised.holder(folder) is not None:
            return os.EX_OK
        # A supervisor's broker gets the folder from one that a command started, which leaves.
        patience = HANDOVER_SECONDS if stay else PATIENCE
        with hold(folder, patience, even_if_served=stay):
            return _run(folder, settings, stay)
    except SettingError as error:
        return _refuse(str(error), os.EX_CONFIG)
    except FolderBusyError as error:
        # The command that started this one wants a broker, and there is one.
        return _refuse(str(error), error.status) if stay else os.EX_OK
    except FolderError as error:
        return _refuse(str(error), error.status)


def _run(folder: Path, settings: Settings, stay: bool) -> int:
    level, form = settings.text("log.level"), settings.text("log.format")
    # Who spawns a broker points its standard error at the log as well: a line once is enough.
    log.begin("broker", level, form, file=folder / LOG, stderr=stay)
    if (sentence := exposed(folder)) is not None:
        _log.warning("folder-exposed", reason=sentence)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(folder, settings, stay)).status
    except ListenError as error:
        return _refuse(str(error), os.EX_UNAVAILABLE)
    except StoreError as error:
        _log.info("store-not-opened", reason=str(error))
        # Without damage, space or rights are missing and may come.
        damaged = isinstance(error, RegistryDamagedError) or (folder / MARK).exists()
        return _refuse(str(error), os.EX_DATAERR if damaged else os.EX_IOERR)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception:  # noqa: BLE001 - the rim of the process: whatever it was belongs in the log
        _log.exception("broker-crashed")
        return os.EX_SOFTWARE


async def _serve(folder: Path, settings: Settings, stay: bool) -> Ending:
    began = time.monotonic()
    listeners = Listeners.of(settings)
    # Before the store: a port that is taken should not cost a recovery.
    tcp = bind(listeners.plain) if listeners.plain else None
    tls = bind(listeners.tls) if listeners.tls else None
    async with AsyncExitStack() as stack:
        file = await FileRegistry.open(folder)
        stack.push_async_callback(file.close)
        keeping = await open_keeping(folder, settings, file)
        coordination = open_coordination(settings, file)
        stack.push_async_callback(coordination.coordinator.close)
        guard = _Guard(coordination.registry)
        if tcp is not None or tls is not None:
            await guard.post(settings)
            stack.callback(guard.close)
        broker = _Broker(keeping, coordination, guard, settings)
        await stack.enter_async_context(keeping.tended())
        await broker.listener.serve_unix(node_socket.listen(folder))
        if tcp is not None:
            await broker.listener.serve_tcp(tcp)
        if tls is not None:
            broker.listener.serve_tls(tls, listeners.certificates)
        keep_loaded()
        settle()
        seconds = round(time.monotonic() - began, 3)
        _log.info("broker-started", folder=str(folder), build=build_id(), seconds=seconds)
        if stay:
            _announce(folder, {"pulsar": tcp, "pulsar+ssl": tls})
        guest = None if stay else _Guest(folder, settings.seconds("broker.linger"))
        service = Service(Notifier.take(os.environ), guard.blacklist)
        ending = await broker.ending(guest)
        service.end()
        return await broker.end(ending)


class _Guard:
    """What stands between strangers and the broker; nothing where only its own socket is served."""

    def __init__(self, registry: Registry) -> None:
        self.counters = Counters(time.monotonic)
        self.gate: Gate | None = None
        self.blacklist: Blacklist | None = None
        self.registry = registry

    async def post(self, settings: Settings) -> None:
        """Have clients say who they are, and be refused what they may not do."""
        owners = Owners(self.registry)
        self.gate = Gate(settings, owners, self.counters, time.time, time.monotonic)  # noqa: TID251 - the clock that is passed around
        if self.gate.enforced:
            await owners.load()
            self.registry = owners
        self.blacklist = Blacklist(self.registry)
        await self.blacklist.start()

    def close(self) -> None:
        """Check nobody any more."""
        if self.gate is not None:
            self.gate.close()
        if self.blacklist is not None:
            self.blacklist.stop()


class Service:
    """A broker that is up, as systemd sees it where it is the main process; SIGHUP reloads."""

    def __init__(self, notifier: Notifier, blacklist: Blacklist | None) -> None:
        self._notifier = notifier
        self._blacklist = blacklist
        self._reload: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._sign: asyncio.TimerHandle | None = None
        self._loop.add_signal_handler(signal.SIGHUP, self._begin_reload)
        notifier.ready()
        if notifier.interval is not None:
            self._live(notifier.interval)

    def end(self) -> None:
        """Tell that the broker ends."""
        if self._sign is not None:
            self._sign.cancel()
        if self._reload is not None:
            self._reload.cancel()
        self._notifier.stopping()

    def _begin_reload(self) -> None:
        self._reload = self._loop.create_task(self._read_again())

    async def _read_again(self) -> None:
        self._notifier.reloading()
        reload_all()
        if self._blacklist is not None:
            await self._blacklist.look()
        self._notifier.ready()

    def _live(self, interval: float) -> None:
        self._notifier.alive()
        self._sign = self._loop.call_later(interval, self._live, interval)


class _Guest:
    """Why a broker that a command started leaves: no clients, or a supervisor of the folder."""

    def __init__(self, folder: Path, linger: float) -> None:
        self._folder = folder
        self._linger = linger
        self._alone_since = time.monotonic()

    def ending(self, busy: bool) -> Ending | None:
        """Return why to leave now, None: not now; `busy`: there are clients."""
        if supervised.holder(self._folder) is not None:
            return Ending.HANDED_OVER
        now = time.monotonic()
        if busy:
            self._alone_since = now
        return Ending.LEFT_ALONE if now - self._alone_since >= self._linger else None


class _Broker:
    """The parts of a running broker."""

    def __init__(
        self, keeping: Keeping, coordination: Coordination, guard: _Guard, settings: Settings
    ) -> None:
        loop = asyncio.get_running_loop()
        self._told = asyncio.Event()
        self._keeping = keeping
        counters = guard.counters
        counters.observe(partial(own_samples, without_password(settings.text("backend.url"))))
        leases = Leases(
            keeping.boot,
            settings.seconds("consume.idle"),
            coordination.coordinator,
            counters,
            time.monotonic,
            loop.call_later,
        )
        served = keeping.serve(leases, counters)
        admin = Admin(served.topics, guard.registry, counters, leases)
        options = ListenerOptions.from_settings(settings, f"message-router {build_id()}")
        self.listener = PulsarListener(
            served.messages, admin, leases, options, guard.gate, guard.blacklist
        )
        for told in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(told, self._told.set)

    async def ending(self, guest: _Guest | None) -> Ending:
        """Wait for a reason to end; a `guest` has reasons of its own."""
        told = asyncio.create_task(self._told.wait())
        while True:
            pause = LOOK if guest is not None else None
            waits: set[asyncio.Future[Any]] = {told, self._keeping.failed}
            await asyncio.wait(waits, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            if self._keeping.failed.done():
                told.cancel()
                return Ending.STORE_FAILED
            if told.done():
                return Ending.TOLD
            if guest is not None and (ending := guest.ending(bool(self.listener.connections))):
                told.cancel()
                return ending

    async def end(self, ending: Ending) -> Ending:
        """Stop serving, close the store, and return how it ended after all."""
        _log.info("broker-ends", reason=ending.name.lower())
        failed = self._keeping.failed
        if ending is not Ending.STORE_FAILED:
            await self._drain()
        if told := failed.done():
            _end_soon(Ending.STORE_FAILED.status)
            _report(failed.result())
        await self.listener.close()
        await self._keeping.close()
        if failed.done() and not told:
            _report(failed.result())
        return Ending.STORE_FAILED if failed.done() else ending

    async def _drain(self) -> None:
        """Let what clients sent be answered, as long as the store can and patience lasts."""
        draining = asyncio.create_task(self.listener.drain())
        waits: set[asyncio.Future[Any]] = {draining, self._keeping.failed}
        await asyncio.wait(waits, timeout=DRAIN, return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()


async def own_samples(backend: str) -> list[Sample]:
    """Return what the broker shows of itself: its build, and what it takes of the machine."""
    build = {
        "version": VERSION,
        "build": build_id(),
        "python": platform.python_version(),
        "backend": backend,
    }
    found: list[Sample] = [
        ("router_build_info", tuple(build.items()), 1.0),
        ("router_broker_start_time_seconds", (), _STARTED),
    ]
    try:
        # Open files are counted one by one.
        taken = await asyncio.to_thread(Resources.now)
    except OSError as error:  # no descriptor is free to look with
        _log.warning("what this process takes is not seen", reason=said(error))
        return found
    own = (("process", "broker"),)
    return [
        *found,
        ("router_process_cpu_seconds_total", own, taken.cpu_seconds),
        *((name, own, value) for name, value in taken.gauges()),
    ]


def _report(error: BaseException) -> None:
    # A lack of memory has no words of its own.
    reason = str(error) or repr(error)
    _log.error("store-failed", error=reason)
    _say(f"storing failed, the broker ends: {reason}")


def _end_soon(status: int) -> None:
    """End the process even if a thread hangs in the disk that failed."""
    watchdog = threading.Timer(PATIENCE, os._exit, (status,))
    watchdog.daemon = True
    watchdog.start()


def _announce(folder: Path, listening: Mapping[str, socket.socket | None]) -> None:
    where = [str((folder / node_socket.SOCKET).absolute())]
    for scheme, listener in listening.items():
        if listener is not None:
            host, port = listener.getsockname()[:2]
            where.append(
                f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
            )
    sys.stdout.write(f"Broker listens on {' and '.join(where)}\n")
    sys.stdout.flush()


def _refuse(sentence: str, status: int) -> int:
    _say(sentence)
    return status


def _say(sentence: str) -> None:
    sys.stderr.write(f"router.broker: {sentence}\n")
    sys.stderr.flush()
