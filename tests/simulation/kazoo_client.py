"""kazoo's client in a simulated process, as `router.coordination.zookeeper.link` uses it.

It has kazoo's states, answers and watches, in kazoo's order: what is not answered when the
connection is lost fails, then the state changes, then watches are called; what is asked for while
there is no connection is sent when there is one. What kazoo does in a thread are callbacks here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from kazoo.exceptions import (
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from kazoo.protocol.states import EventType, KazooState, WatchedEvent

from router.coordination import opening
from router.coordination.zookeeper import link as zookeeper_link
from router.coordination.zookeeper.link import ZookeeperOptions
from tests.simulation.loop import ProcessLoop
from tests.simulation.seeded import CLOCK
from tests.simulation.zookeeper import Connection, Ensemble, Place

RECONNECT_SECONDS: Final = (0.1, 2.0)

Watch = Callable[[Any], None]


class Answer:
    """What a request comes to, as kazoo's IAsyncResult."""

    def __init__(self) -> None:
        self.value: Any = None
        self.exception: BaseException | None = None
        self._is_done = False
        self._link: Callable[[Answer], None] | None = None

    def rawlink(self, callback: Callable[[Answer], None]) -> None:
        """Call this when there is an answer."""
        self._link = callback
        if self._is_done:
            callback(self)

    def settle(self, value: Any, exception: BaseException | None) -> None:
        """Take the answer."""
        self.value, self.exception, self._is_done = value, exception, True
        if self._link is not None:
            self._link(self)


class SimulatedClient:
    """kazoo's client in the process of a loop; its thread's work are callbacks of that loop."""

    def __init__(
        self, ensemble: Ensemble, place: Place, loop: ProcessLoop, handler: Any, seconds: float
    ) -> None:
        self.ensemble, self.place, self.loop, self.name = ensemble, place, loop, loop.name
        self.connection: Connection | None = None
        self._handler, self._seconds = handler, seconds
        self._session = 0
        self._is_live = self._is_stopped = False
        self._listeners: list[Callable[[Any], Any]] = []
        self._requests: deque[tuple[Callable[[Connection], Any], Answer]] = deque()
        self._in_flight: deque[Answer] = deque()
        self._watches: dict[tuple[str, str], dict[Watch, None]] = {}
        granted = int(seconds * 2 / 3 * 1000), 1000
        self._connection = SimpleNamespace(_connect=lambda *_: granted)

    # What kazoo's users call.

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """Return the session while it is connected."""
        return (self._session, b"") if self._is_live else None

    def add_listener(self, listener: Callable[[Any], Any]) -> None:
        self._listeners.append(listener)

    def start_async(self) -> None:
        self._connect_later()

    def stop(self) -> None:
        self._is_stopped = True
        connection = self.connection
        if connection is not None and connection.session is not None:
            connection.up(lambda: self._end(connection))

    def _end(self, connection: Connection) -> None:
        if connection.session is not None:
            self.ensemble.end(connection.session)

    def close(self) -> None:
        """Hold nothing."""

    def get_children_async(
        self, path: str, watch: Watch | None = None, *, include_data: bool = False
    ) -> Answer:
        def read(connection: Connection) -> Any:
            found = self.ensemble.read(path)
            self._add_watch(connection, "children", path, watch)
            names = list(found.children)
            return (names, SimpleNamespace(dataLength=len(found.data))) if include_data else names

        return self._request(read)

    def exists_async(self, path: str, watch: Watch | None = None) -> Answer:
        def read(connection: Connection) -> Any:
            self._add_watch(connection, "exists", path, watch)
            return self.ensemble.tree.get(path)

        return self._request(read)

    def create_async(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> Answer:
        def create(connection: Connection) -> str:
            owner = connection.session.number if ephemeral and connection.session else 0
            return self.ensemble.create(path, value, owner, sequence=sequence)

        return self._request(create)

    def delete_async(self, path: str) -> Answer:
        return self._request(lambda _: self.ensemble.delete(path))

    def ensure_path_async(self, path: str) -> Answer:
        return self._request(lambda _: self.ensemble.ensure(path))

    def get_async(self, path: str) -> Answer:
        return self._request(lambda _: (self.ensemble.read(path).data, None))

    def set_async(self, path: str, value: bytes) -> Answer:
        def write(_: Connection) -> None:
            self.ensemble.read(path).data = value

        return self._request(write)

    def sync_async(self, path: str) -> Answer:
        return self._request(lambda _: path)

    # Its connection.

    def _request(self, work: Callable[[Connection], Any]) -> Answer:
        answer = Answer()
        if self._is_live:
            self._send(work, answer)
        else:
            # kazoo keeps it until there is a connection.
            self._requests.append((work, answer))
        return answer

    def _send(self, work: Callable[[Connection], Any], answer: Answer) -> None:
        connection = self.connection
        assert connection is not None
        self._in_flight.append(answer)
        connection.up(lambda: self._serve(connection, work))

    def _serve(self, connection: Connection, work: Callable[[Connection], Any]) -> None:
        """Do a request, at the ensemble."""
        value, error = None, None
        if connection.session is None or connection.session.number not in self.ensemble.sessions:
            return
        try:
            value = work(connection)
        except (NoNodeError, NodeExistsError, NotEmptyError) as refusal:
            error = refusal
        connection.down(lambda: self._in_flight.popleft().settle(value, error))

    def _add_watch(self, connection: Connection, kind: str, path: str, watch: Watch | None) -> None:
        if watch is not None:
            connection.watches[kind, path] = None
            found = {watch: None}
            connection.down(lambda: self._watches.setdefault((kind, path), {}).update(found))

    def watched(self, connection: Connection, kind: str, path: str, event: str) -> None:
        """Tell the client of a change that it watches; called at the ensemble."""
        connection.down(lambda: self._fire(kind, path, event))

    def _fire(self, kind: str, path: str, event: str) -> None:
        for watch in self._watches.pop((kind, path), {}):
            watch(WatchedEvent(event, None, path))

    def _connect_later(self) -> None:
        seconds = self.ensemble.chance.uniform(*RECONNECT_SECONDS)
        self.loop.call_later(seconds, self._connect)

    def _connect(self) -> None:
        if self._is_stopped or self.connection is not None:
            return
        if max(self.place.cut_until, self.ensemble.away_until) > CLOCK.now:
            self._connect_later()
            return
        self.connection = self._handler._socket = connection = Connection(self)
        self._connection._connect()
        connection.up(lambda: self.ensemble.connect(connection, self._session, self._seconds))
        self.loop.call_later(self._seconds, self._time_out, connection)

    def _time_out(self, connection: Connection) -> None:
        """Give up a connection that was not answered."""
        if not self._is_live and self.connection is connection:
            connection.shutdown(0)

    def accepted(self, session: int) -> None:
        """Begin, or go on with, a session."""
        self._session, self._is_live = session, True
        self._tell(KazooState.CONNECTED)
        while self._requests:
            self._send(*self._requests.popleft())

    def expired(self) -> None:
        """Learn that the session is over."""
        self._session, self._is_live, self.connection = 0, False, None
        self._tell(KazooState.LOST)
        self._fail(SessionExpiredError)
        self._connect_later()

    def dropped(self, connection: Connection) -> None:
        """Learn that a connection is lost."""
        if self.connection is not connection:
            return
        self.connection, was_live, self._is_live = None, self._is_live, False
        if was_live:
            self._fail(ConnectionLoss)
            self._tell(KazooState.SUSPENDED)
            self._reset_watches()
        self._connect_later()

    def _fail(self, error: type[Exception]) -> None:
        waiting = [*self._in_flight, *(answer for _, answer in self._requests)]
        self._in_flight.clear()
        self._requests.clear()
        for answer in waiting:
            answer.settle(None, error())
        if error is SessionExpiredError:
            self._reset_watches()

    def _reset_watches(self) -> None:
        watches, self._watches = self._watches, {}
        for found in watches.values():
            for watch in found:
                watch(WatchedEvent(EventType.NONE, None, None))

    def _tell(self, state: Any) -> None:
        for listener in self._listeners:
            listener(state)


class _Thread:
    """A thread of the link, as a step of its loop."""

    def __init__(self, target: Callable[[], None], **_: Any) -> None:
        self._target = target

    def start(self) -> None:
        asyncio.get_running_loop().call_soon(self._target)


def install() -> None:
    """Have links of the nodes of this process use the ensemble that their loops belong to."""
    options: Any = ZookeeperOptions
    options.client = _client
    replaced: Any = zookeeper_link
    replaced.threading = SimpleNamespace(Thread=_Thread)
    replaced = opening
    replaced._clock = CLOCK.monotonic
    replaced.node_name = lambda _settings: _loop().name


def _loop() -> Any:
    return asyncio.get_running_loop()


def _client(options: ZookeeperOptions, handler: Any) -> SimulatedClient:
    loop = _loop()
    return SimulatedClient(loop.ensemble, loop.place, loop, handler, options.session)
