"""ZooKeeper as the nodes' leases use it: its tree, its sessions, and what they watch.

A connection carries requests and answers in their order, each late, until it is lost; what a client
is not answered then may have been done. The ensemble forgets a session that it has not heard of for
its time, with all its entries.

Not simulated: followers that are behind their leader. What a read shows is old when it arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.states import EventType

from tests.simulation.history import History
from tests.simulation.loop import ProcessLoop
from tests.simulation.seeded import CLOCK

if TYPE_CHECKING:
    from tests.simulation.kazoo_client import SimulatedClient

DELAY_SECONDS: Final = (0.0002, 0.01)
SLOW_DELAY_SECONDS: Final = 0.25
SLOW_ODDS: Final = 0.02
TICK_SECONDS: Final = 1.0
"""A session may last so much longer than its time."""
MAX_SEQUENCE_DIGITS: Final = 10


@dataclass
class TreeNode:
    """A node of the tree; `owner` is the session of an ephemeral one, 0: it stays."""

    data: bytes = b""
    owner: int = 0
    children: dict[str, None] = field(default_factory=dict)
    changes: int = 0


@dataclass
class Session:
    """What the ensemble knows of a client."""

    number: int
    seconds: float
    heard_at: float
    connection: Connection | None = None


class Connection:
    """A connection between a client and the ensemble; each direction keeps its order."""

    def __init__(self, client: SimulatedClient) -> None:
        self.client = client
        self.is_lost = False
        self.session: Session | None = None
        self.watches: dict[tuple[str, str], None] = {}
        """What the client is told of once: kind and path."""
        self._rising: deque[Callable[[], None]] = deque()
        self._falling: deque[Callable[[], None]] = deque()
        self._up_at = self._down_at = 0.0

    def up(self, call: Callable[[], None]) -> None:
        """Have something arrive at the ensemble."""
        self._rising.append(call)
        self._up_at = self._arrival(self._up_at)
        self.client.ensemble.loop.call_at(self._up_at, self._arrive)

    def down(self, call: Callable[[], None]) -> None:
        """Have something arrive at the client, as soon as its process runs."""
        self._falling.append(call)
        self._down_at = self._arrival(self._down_at)
        self.client.ensemble.loop.call_at(self._down_at, self._hand_over)

    def _arrival(self, before: float) -> float:
        chance = self.client.ensemble.chance
        delay = chance.uniform(*DELAY_SECONDS) + self.client.ensemble.slow_seconds
        if chance.random() < SLOW_ODDS:
            delay += chance.uniform(0, SLOW_DELAY_SECONDS)
        return max(before + 1e-6, CLOCK.now + delay)

    def _arrive(self) -> None:
        if self.is_lost:
            return
        if self._is_held(self._arrive):
            return
        if self.session is not None:
            self.session.heard_at = CLOCK.now
        self._rising.popleft()()

    def _hand_over(self) -> None:
        if not self.is_lost and not self._is_held(self._hand_over):
            self.client.loop.call_soon(self._take, self._falling.popleft())

    def _is_held(self, again: Callable[[], None]) -> bool:
        """Return whether the client is cut off; as TCP does, what is on its way is sent again."""
        until = self.client.place.cut_until
        if until > CLOCK.now:
            self.client.ensemble.loop.call_at(until + 1e-6, again)
        return until > CLOCK.now

    def _take(self, call: Callable[[], None]) -> None:
        if not self.is_lost and self.client.connection is self:
            call()

    def lose(self, *, told: bool = True) -> None:
        """Carry nothing more; the client learns of it, soon or when it ends the connection."""
        if not self.is_lost:
            self.is_lost = True
            if self.session is not None and self.session.connection is self:
                self.session.connection = None
            if told:
                at = max(self._arrival(self._down_at), self.client.place.cut_until)
                self.client.ensemble.loop.call_at(at, self._tell)

    def _tell(self) -> None:
        self.client.loop.call_soon(self.client.dropped, self)

    def shutdown(self, _how: int) -> None:
        """End it from the client's side, as its socket does."""
        self.lose(told=False)
        self.client.loop.call_soon(self.client.dropped, self)


class Place:
    """A machine, as the network sees it: cut off from the ensemble until a time."""

    def __init__(self) -> None:
        self.cut_until = 0.0


class Ensemble:
    """The tree and the sessions; requests are taken one after the other."""

    def __init__(self, seed: str, loop: ProcessLoop, history: History) -> None:
        self.loop, self.history = loop, history
        self.chance = Random(f"{seed}:zookeeper")
        self.tree: dict[str, TreeNode] = {"": TreeNode()}
        self.sessions: dict[int, Session] = {}
        self.connections: dict[Connection, None] = {}
        self.away_until = self.slow_seconds = 0.0
        self.changed: Callable[[str], None] = lambda _folder: None
        """Called with a folder whose children changed."""
        self._numbers = 0

    def lose_all(self, seconds: float) -> None:
        """Be away for so long; sessions are kept, and begin their time anew."""
        self.away_until = CLOCK.now + seconds
        for connection in list(self.connections):
            self.lose(connection)
        for session in self.sessions.values():
            session.heard_at = self.away_until

    def lose(self, connection: Connection, *, told: bool = True) -> None:
        """End a connection."""
        self.connections.pop(connection, None)
        connection.lose(told=told)

    def connect(self, connection: Connection, number: int, seconds: float) -> None:
        """Answer the first request of a connection: with its session, a new one, or its end."""
        self.connections[connection] = None
        session = self.sessions.get(number)
        if number and session is None:
            connection.down(connection.client.expired)
            return
        if session is None:
            self._numbers += 1
            session = Session(self._numbers, seconds, CLOCK.now)
            self.sessions[session.number] = session
            self._watch_over(session)
        if session.connection is not None:
            self.lose(session.connection)
        session.connection, connection.session, session.heard_at = connection, session, CLOCK.now
        self.history.trace("zookeeper", f"session {session.number} of {connection.client.name}")
        connection.down(lambda: connection.client.accepted(session.number))

    def _watch_over(self, session: Session) -> None:
        if session.number not in self.sessions:
            return
        over_at = session.heard_at + session.seconds
        if CLOCK.now < over_at:
            late = self.chance.uniform(0, TICK_SECONDS)
            self.loop.call_at(over_at + late, self._watch_over, session)
        else:
            self.history.count("sessions expired")
            self.end(session)

    def end(self, session: Session) -> None:
        """Forget a session, and delete its entries."""
        if self.sessions.pop(session.number, None) is None:
            return
        self.history.trace("zookeeper", f"session {session.number} is over")
        for path in [path for path, one in self.tree.items() if one.owner == session.number]:
            self.delete(path)
        if session.connection is not None:
            self.lose(session.connection)

    # Requests. All raise kazoo's exceptions.

    def read(self, path: str) -> TreeNode:
        """Return a node."""
        found = self.tree.get(path)
        if found is None:
            raise NoNodeError
        return found

    def create(self, path: str, data: bytes, owner: int, *, sequence: bool) -> str:
        """Make a node and return its path."""
        folder, _, _ = path.rpartition("/")
        parent = self.read(folder)
        if sequence:
            path = f"{path}{parent.changes:0{MAX_SEQUENCE_DIGITS}d}"
        if path in self.tree:
            raise NodeExistsError
        self.tree[path] = TreeNode(data, owner)
        parent.children[path.rpartition("/")[2]] = None
        parent.changes += 1
        self._notify("exists", path, EventType.CREATED)
        self._notify("children", folder, EventType.CHILD)
        self.changed(folder)
        return path

    def ensure(self, path: str) -> str:
        """Have a node, and those above it."""
        made = ""
        for name in path.strip("/").split("/"):
            made = f"{made}/{name}"
            if made not in self.tree:
                self.create(made, b"", 0, sequence=False)
        return path

    def delete(self, path: str) -> bool:
        """Delete a node that has no children."""
        if self.read(path).children:
            raise NotEmptyError
        del self.tree[path]
        folder, _, name = path.rpartition("/")
        parent = self.tree[folder]
        del parent.children[name]
        parent.changes += 1
        self._notify("exists", path, EventType.DELETED)
        self._notify("children", path, EventType.DELETED)
        self._notify("children", folder, EventType.CHILD)
        self.changed(folder)
        return True

    def _notify(self, kind: str, path: str, event: str) -> None:
        for session in self.sessions.values():
            connection = session.connection
            if connection is not None and (kind, path) in connection.watches:
                del connection.watches[kind, path]
                connection.client.watched(connection, kind, path, event)

    def first(self, folder: str) -> str | None:
        """Return the name of the first entry of a queue."""
        found = self.tree.get(folder)
        entries = [name for name in found.children if "@" in name] if found else []
        return min(entries, key=lambda name: int(name.rpartition("-")[2])) if entries else None
