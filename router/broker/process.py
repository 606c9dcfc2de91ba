"""The broker process of a node: how it starts, why it ends, and with which status.

Theory of operation. One process serves a data folder; the lock in the folder decides which one
(router/broker/folder.py). It opens the store first and its sockets last, so that every client that
reaches it is served. It ends for one of the reasons that `Ending` lists: a signal; the last client
of a broker that a command started (no `--stay`) left long enough ago, or a supervisor took the
folder (process/supervised.py); the store failed. In all cases but the last it stops accepting, lets
appends under way finish, and closes the store, so that the next start has little to recover. No
client can end it. After a failed write or sync it must not touch the store again: what the disk
holds then is for recovery to find out.

A failed store ends the process although reading might still work, because only a new process may
trust what it reads back. The alternative, going on read-only, would serve pages that never reached
the disk.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final

import structlog
import uvloop

from router import log
from router.access.watched import reload_all
from router.broker.descriptors import raise_limit
from router.broker.folder import MARK, FolderBusyError, FolderError, exposed, hold
from router.broker.listeners import LISTENERS, check
from router.broker.node.registry import RegistryDamagedError
from router.broker.running import DRAIN_SECONDS, RunningBroker
from router.broker.storage import FormatError, StoreError
from router.broker.transport.blacklist import BrokerBlacklist
from router.broker.transport.listener import Listeners
from router.broker.transport.listening import ListenError
from router.errors import SettingError
from router.process import node_socket, supervised
from router.process.build import build_id
from router.process.collecting import keep_loaded, settle
from router.process.systemd import Notifier
from router.settings import Settings

LOG: Final = "broker.log"
LOCK_WAIT_SECONDS: Final = 5.0
WATCHDOG_SECONDS: Final = 5.0
HANDOVER_SECONDS: Final = DRAIN_SECONDS + WATCHDOG_SECONDS
"""Time in which a broker that was told to end has ended."""
GUEST_CHECK_SECONDS: Final = 0.25
THREAD_SWITCH_SECONDS: Final = 0.0005

_log = structlog.get_logger(__name__)


class Ending(Enum):
    """Why a broker ends, and with which status."""

    SIGNALLED = os.EX_OK
    LEFT_ALONE = -1
    HANDED_OVER = -2
    STORE_FAILED = os.EX_IOERR

    @property
    def status(self) -> int:
        """Return the exit status of the process."""
        return max(0, self.value)


def run(settings: Settings, *, stay: bool) -> int:
    """Serve the folder of the settings until the end; return the exit status.

    A reason not to start is one sentence on standard error.
    """
    folder = Path(settings.text("data.dir"))
    log.begin("broker", settings.text("log.level"), settings.text("log.format"))
    raise_limit()
    try:
        check(settings)
        if not stay and supervised.holder(folder) is not None:
            return os.EX_OK
        # A supervisor's broker gets the folder from one that a command started, which ends.
        seconds = HANDOVER_SECONDS if stay else LOCK_WAIT_SECONDS
        with hold(folder, seconds, even_if_served=stay):
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
    # A command that starts a broker points its standard error at the log, too: once is enough.
    log.begin("broker", level, form, file=folder / LOG, stderr=stay)
    if (sentence := exposed(folder)) is not None:
        _log.warning("folder-exposed", reason=sentence)
    # The event loop waits no longer for a thread that computes: records and passwords are checked.
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(folder, settings, stay)).status
    except ListenError as error:
        return _refuse(str(error), os.EX_UNAVAILABLE)
    except StoreError as error:
        _log.info("store-not-opened", reason=str(error))
        # Without damage, space or rights are missing and may come.
        damaged = isinstance(error, RegistryDamagedError | FormatError) or (folder / MARK).exists()
        return _refuse(str(error), os.EX_DATAERR if damaged else os.EX_IOERR)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception:  # noqa: BLE001 - the boundary of the process: whatever it was is logged
        _log.exception("broker-crashed")
        return os.EX_SOFTWARE


async def _serve(folder: Path, settings: Settings, stay: bool) -> Ending:
    began = time.monotonic()
    # Before the store, too: a start makes objects by the hundred thousand, and keeps them.
    settle()
    # Before the store: a port that is taken should not cost a recovery.
    listeners = Listeners(LISTENERS, settings)
    async with AsyncExitStack() as stack:
        broker = await RunningBroker.open(folder, settings, listeners, stack)
        signalled = asyncio.Event()
        # Before it serves: who finds it there may have it end, as a signal does.
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, signalled.set)
        await broker.serve(folder)
        keep_loaded()
        seconds = round(time.monotonic() - began, 3)
        _log.info("broker-started", folder=str(folder), build=build_id(), seconds=seconds)
        if stay:
            _announce(folder, listeners.urls())
        guest = None if stay else _Guest(folder, settings.seconds("broker.linger"))
        service = Service(Notifier.take(os.environ), broker.blacklist)
        recorder = await broker.record(folder)
        ending = await _wait_for_ending(broker, signalled, guest)
        if recorder is not None:
            recorder.stop()
        service.end()
        return await _end(broker, ending)


class Service:
    """A broker that is up, as systemd sees it where it is the main process; SIGHUP reloads."""

    def __init__(self, notifier: Notifier, blacklist: BrokerBlacklist | None) -> None:
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
        """Tell systemd that the broker ends."""
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
            await self._blacklist.refresh()
        self._notifier.ready()

    def _live(self, interval: float) -> None:
        self._notifier.alive()
        self._sign = self._loop.call_later(interval, self._live, interval)


class _Guest:
    """Why a broker that a command started ends: no clients, or a supervisor of the folder."""

    def __init__(self, folder: Path, linger: float) -> None:
        self._folder = folder
        self._linger = linger
        self._alone_since = time.monotonic()

    def ending(self, busy: bool) -> Ending | None:
        """Return why to end now, None: not now; `busy`: there are clients."""
        if supervised.holder(self._folder) is not None:
            return Ending.HANDED_OVER
        now = time.monotonic()
        if busy:
            self._alone_since = now
        return Ending.LEFT_ALONE if now - self._alone_since >= self._linger else None


async def _wait_for_ending(
    broker: RunningBroker, signalled: asyncio.Event, guest: _Guest | None
) -> Ending:
    """Return the first reason to end; a `guest` has reasons of its own."""
    signal_wait = asyncio.create_task(signalled.wait())
    waits: set[asyncio.Future[Any]] = {signal_wait, broker.failed}
    pause = GUEST_CHECK_SECONDS if guest is not None else None
    try:
        while True:
            await asyncio.wait(waits, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            if broker.failed.done():
                return Ending.STORE_FAILED
            if signal_wait.done():
                return Ending.SIGNALLED
            if guest is not None and (ending := guest.ending(bool(broker.connections))):
                return ending
    finally:
        signal_wait.cancel()


async def _end(broker: RunningBroker, ending: Ending) -> Ending:
    """Stop serving, close the store, and return how it ended after all."""
    _log.info("broker-ends", reason=ending.name.lower())
    if ending is not Ending.STORE_FAILED:
        await broker.drain()
    if reported := broker.failed.done():
        _end_soon(Ending.STORE_FAILED.status)
        _report(broker.failed.result())
    await broker.close()
    if broker.failed.done() and not reported:
        _report(broker.failed.result())
    return Ending.STORE_FAILED if broker.failed.done() else ending


def _report(error: BaseException) -> None:
    # A lack of memory has no words of its own.
    reason = str(error) or repr(error)
    _log.error("store-failed", error=reason)
    _notify(f"storing failed, the broker ends: {reason}")


def _end_soon(status: int) -> None:
    """End the process even if a thread hangs in the disk that failed."""
    watchdog = threading.Timer(WATCHDOG_SECONDS, os._exit, (status,))
    watchdog.daemon = True
    watchdog.start()


def _announce(folder: Path, urls: Sequence[str]) -> None:
    addresses = [str((folder / node_socket.SOCKET).absolute()), *urls]
    log.write_output(f"Broker listens on {' and '.join(addresses)}\n")


def _refuse(sentence: str, status: int) -> int:
    _notify(sentence)
    return status


def _notify(sentence: str) -> None:
    # What the log goes to may be on the disk that is full.
    with suppress(OSError):
        sys.stderr.write(f"router.broker: {sentence}\n")
        sys.stderr.flush()
