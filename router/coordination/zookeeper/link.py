"""The node's one connection to ZooKeeper, for code on an event loop.

Theory of operation. kazoo works in threads of its own; everything it says is handed to the loop
with `call_soon_threadsafe`, in its order, and nothing here waits for it. The link is *up* from the
first answer of a session until kazoo notices that the connection went; requests fail meanwhile,
because what kazoo would keep until it is connected again would then be done for a caller that does
not wait for it any more, perhaps in another session.

`is_valid` does not trust what was heard last, as a process that stood still (SIGSTOP, a suspended
machine) hears of nothing. A heartbeat goes through ZooKeeper's leader; when its answer has come,
the session stood at the time when it was *sent*, and will for as long as ZooKeeper promised. Of
that time two thirds are used, and the clock goes on while the process stands. ZooKeeper keeps a
session from when it was last heard of, which is later than the sending: the rest is for clocks that
do not run alike. An unanswered heartbeat ends the connection: kazoo looks for silence only while
nothing is sent.

A session that ZooKeeper expired is noticed when the link is up again, in a new session. Reading
kazoo's `Lock.is_acquired`, the alternative, goes on saying yes for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    KazooException,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from router.errors import SettingError
from router.settings import Settings

BEATS: Final = 6
VALID_SHARE: Final = 2 / 3
MAX_IN_FLIGHT: Final = 128
MIN_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 2.0
CLOSE_SECONDS: Final = 3.0

_CONNECTION: Final = (
    AuthFailedError,
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)

_log = structlog.get_logger(__name__)


class DownError(Exception):
    """The request was not made, or what came of it is unknown: the connection is not there."""


@dataclass(frozen=True, slots=True)
class ZookeeperOptions:
    """Which ZooKeeper, and how; `servers` without the chroot, which begins with `/` or is empty."""

    servers: str
    chroot: str
    session: float
    digest: str = ""

    @classmethod
    def parse(cls, servers: str, session: float, digest: str = "") -> ZookeeperOptions:
        """Read HOST:PORT,HOST:PORT/chroot; raise SettingError."""
        hosts, slash, rest = servers.partition("/")
        chroot = slash + rest
        host = r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?"
        if not re.fullmatch(rf"{host}(,{host})*", hosts) or "//" in chroot:
            raise SettingError(
                f"zookeeper.servers = {servers!r}: expected HOST:PORT,HOST:PORT/chroot"
            )
        if digest and not all(digest.partition(":")):
            raise SettingError("zookeeper.digest: expected user:password")
        return cls(hosts, chroot.rstrip("/"), session, digest)

    @classmethod
    def from_settings(cls, settings: Settings) -> ZookeeperOptions:
        """Read them; raise SettingError."""
        return cls.parse(
            settings.text("zookeeper.servers"),
            settings.seconds("zookeeper.session"),
            settings.text("zookeeper.digest"),
        )

    def client(self, handler: SequentialThreadingHandler) -> Any:
        """Return a client of kazoo's, not started, whose nodes only this digest may use."""
        acl, auth = None, None
        if self.digest:
            user, _, password = self.digest.partition(":")
            acl, auth = [make_digest_acl(user, password, all=True)], [("digest", self.digest)]
        quiet = logging.getLogger("kazoo")
        quiet.setLevel(logging.ERROR)
        return KazooClient(
            hosts=self.servers,
            timeout=self.session,
            handler=handler,
            default_acl=acl,
            auth_data=auth,
            connection_retry=KazooRetry(
                max_tries=-1, delay=MIN_PAUSE_SECONDS, max_delay=MAX_PAUSE_SECONDS, max_jitter=0.1
            ),
            logger=quiet,
        )


class KazooHandler(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no types
    """kazoo with one thread instead of three, and the socket at hand, so that it can be ended.

    What is told by kazoo is only handed on to the loop, so its connection's thread may do that
    itself: kazoo calls back at once while a handler is not started. Each thread less on the way is
    some milliseconds less where the interpreter is busy, and answers and events keep their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Start no threads."""

    def stop(self) -> None:
        """Stop none."""

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watcher at once."""
        callback.func(*callback.args)

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect, as kazoo does."""
        self._socket = super().create_connection(*args, **kwargs)
        return self._socket

    def cut(self) -> None:
        """End the connection; kazoo notices and makes another one."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


class ZooKeeperLink:
    """One session, and the next one after it was lost; used on one event loop.

    `up(anew)` is called when requests can be made, with whether this is another session than the
    last time; `down()` when they cannot any more. Both on the loop, in turns.
    """

    def __init__(self, options: ZookeeperOptions, clock: Callable[[], float]) -> None:
        self._options = options
        self._clock = clock
        self._handler = KazooHandler()
        self._client = options.client(self._handler)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._listeners: list[tuple[Callable[[bool], None], Callable[[], None]]] = []
        self._beating: asyncio.Task[None] | None = None
        self._connected = False
        self._up = False
        self._session: int | None = None
        self._granted = options.session
        self._sure_until = 0.0
        self._remember_session_time()

    @property
    def is_up(self) -> bool:
        """Whether requests can be made."""
        return self._up

    @property
    def where(self) -> str:
        """The servers and the chroot, for people."""
        return f"{self._options.servers}{self._options.chroot}"

    def listen(self, up: Callable[[bool], None], down: Callable[[], None]) -> None:
        """Tell of the link from now on; before `start`."""
        self._listeners.append((up, down))

    def start(self) -> None:
        """Connect, and go on trying for ever; returns at once."""
        self._loop = asyncio.get_running_loop()
        self._client.add_listener(self._heard)
        self._client.start_async()

    def path(self, path: str) -> str:
        """Return a path under the chroot as ZooKeeper knows it."""
        return f"{self._options.chroot}{path}"

    async def ask(self, begin: Callable[[Any], Any]) -> Any:
        """Return what a request of kazoo's comes to: `begin(client)` starts it (`…_async`).

        Requests are done in the order in which they were begun. Raises DownError, and kazoo's
        exceptions about nodes (NoNodeError and the like).
        """
        async with self._room:
            if not self._connected:
                raise DownError
            future = asyncio.get_running_loop().create_future()
            begin(self._client).rawlink(functools.partial(self._answered, future))
            return await future

    def on_loop(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a watcher for kazoo that has `call(event)` called on the loop."""

        def seen(event: Any) -> None:
            self._hand_over(call, event)

        return seen

    def is_valid(self) -> bool:
        """Return whether the session certainly stands at this moment."""
        return self._up and self._clock() < self._sure_until

    async def close(self) -> None:
        """End the session, and with it everything that goes with it."""
        self._listeners.clear()
        self._down()
        done = asyncio.Event()

        def stop() -> None:
            with contextlib.suppress(Exception):
                self._client.stop()
                self._client.close()
            self._hand_over(lambda _: done.set(), None)

        # Not the loop's executor: its end would wait for a server that does not answer.
        threading.Thread(target=stop, name="zookeeper-goodbye", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), CLOSE_SECONDS)

    def _hand_over(self, call: Callable[[Any], None], value: object) -> None:
        """Have something called on the loop; called on kazoo's threads."""
        if self._loop is not None:
            # A loop that is closed has no listener left.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call, value)

    def _answered(self, future: asyncio.Future[Any], result: Any) -> None:
        def settle(_: object) -> None:
            if future.done():
                return
            error = result.exception
            if error is None:
                future.set_result(result.value)
            elif isinstance(error, _CONNECTION):
                future.set_exception(DownError())
            else:
                future.set_exception(error)

        self._hand_over(settle, None)

    def _heard(self, state: Any) -> None:
        """Take a change of kazoo's state; called on its thread."""
        known = self._client.client_id
        session = known[0] if known and state == KazooState.CONNECTED else None
        self._hand_over(self._changed, session)

    def _changed(self, session: int | None) -> None:
        self._down()
        if session is not None:
            self._connected = True
            self._beating = asyncio.create_task(self._beat(session))

    def _down(self) -> None:
        self._connected = False
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        if self._up:
            self._up = False
            if self._listeners:
                _log.warning("zookeeper-lost", servers=self.where)
            for _, down in self._listeners:
                down()

    async def _beat(self, session: int) -> None:
        with contextlib.suppress(DownError):
            while True:
                sent = self._clock()
                # Not longer than `is_valid` says yes: what cannot be acknowledged any more is
                # not to be handed out either, again and again. A process that stood still asks once
                # more, though.
                left = self._sure_until - sent if self._up else self._granted * VALID_SHARE
                timeout = max(left, self._granted / BEATS)
                try:
                    await asyncio.wait_for(self.ask(lambda client: client.sync_async("/")), timeout)
                except TimeoutError:
                    _log.warning("zookeeper-silent", servers=self.where)
                    self._handler.cut()
                    return
                except KazooException as refused:
                    # It is there and will not say: nothing is sure until it does.
                    _log.warning("zookeeper-refuses", servers=self.where, error=repr(refused))
                else:
                    self._sure_until = sent + self._granted * VALID_SHARE
                    if not self._up:
                        self._rise(session)
                await asyncio.sleep(self._granted / BEATS)

    def _rise(self, session: int) -> None:
        anew, self._session = self._session != session, session
        self._up = True
        _log.info(
            "zookeeper-connected",
            servers=self.where,
            session=f"{session:#x}",
            anew=anew,
            timeout=self._granted,
        )
        for up, _ in self._listeners:
            up(anew)

    def _remember_session_time(self) -> None:
        """Learn which session timeout the server grants: it has bounds of its own.

        kazoo does not report it; this is the only reason to reach into it.
        """
        connection = self._client._connection
        connect = connection._connect

        def remember(*args: Any) -> Any:
            read_timeout, connect_timeout = connect(*args)
            # kazoo reads for two thirds of the session, in ms.
            self._granted = read_timeout * 1.5 / 1000
            return read_timeout, connect_timeout

        connection._connect = remember
