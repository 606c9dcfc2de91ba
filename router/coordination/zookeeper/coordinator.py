"""The Coordinator over ZooKeeper: all entries and rosters of the node, and what they are told.

Every entry, and every roster, is one small task while the link is up. When the link goes all tasks
are cancelled and everything that was held is lost at once; when it is back each is started again,
and looks at what is there before it says that it holds anything: what outlived the break in the
same session is taken up, after the end of a session it is queued for anew.

Nothing here waits for ZooKeeper on behalf of a caller. What a node lets go is deleted by a task of
its own, which is started again after each break until it is done or the session is over.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from kazoo.exceptions import KazooException

from router.coordination import Lease, Listener, RemoteGroup
from router.coordination.zookeeper.entry import Entry
from router.coordination.zookeeper.link import DownError, Link
from router.coordination.zookeeper.looking import look
from router.coordination.zookeeper.names import IDS, LEASES
from router.coordination.zookeeper.roster import Roster
from router.coordination.zookeeper.sweep import Sweep, tidy

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 5.0

_log = structlog.get_logger(__name__)


class ZookeeperCoordinator:
    """The node's part in the coordination through ZooKeeper; `node` is its name for people."""

    def __init__(self, link: Link, node: str) -> None:
        self._link = link
        self._node = node
        self._token = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._listener: Listener | None = None
        self._entries: dict[Lease, Entry] = {}
        self._leaving: set[Entry] = set()
        self._rosters: dict[tuple[str, str], Roster] = {}
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._refusal: str | None = None
        self._sweep = Sweep(link)
        link.listen(self._up, self._down)

    def listen(self, listener: Listener) -> None:
        """Tell this listener from now on."""
        self._listener = listener

    def acquire(self, lease: Lease) -> None:
        """Queue for a lease, now or when the link is up."""
        if lease not in self._entries:
            token = f"{self._token}.{next(self._numbers)}"
            self._entries[lease] = entry = Entry(self._link, lease, self._node, token)
            self._start(entry)

    def release(self, lease: Lease, note: bytes = b"") -> None:
        """Leave the queue for a lease."""
        entry = self._entries.pop(lease, None)
        if entry is not None:
            self._stop(entry)
            entry.note = note
            entry.interrupted(anew=False)
            if self._link.is_up or not entry.absent:
                self._leaving.add(entry)
                self._start(entry)

    def join(self, topic: str, subscription: str, consumer: str) -> None:
        """Tell the other nodes that a consumer id is live here."""
        roster = self._rosters.get((topic, subscription))
        if roster is None:
            roster = Roster(self._link, topic, subscription, self._node, self._token)
            self._rosters[topic, subscription] = roster
        if not roster.own:
            roster.forget()
        roster.own.add(consumer)
        self._attend(roster)

    def leave(self, topic: str, subscription: str, consumer: str) -> None:
        """Tell the other nodes that a consumer id is live here no more."""
        roster = self._rosters.get((topic, subscription))
        if roster is not None:
            roster.own.discard(consumer)
            self._attend(roster)

    def holder(self, lease: Lease) -> str | None:
        """Return the name of the other node that holds a lease, as far as it is known."""
        entry = self._entries.get(lease)
        place = entry.holder if entry else None
        if place is None or place.token.startswith(f"{self._token}."):
            return None
        return place.node

    async def look(self, topic: str, subscription: str) -> RemoteGroup:
        """Return a group as ZooKeeper has it at this moment; empty in trouble."""
        try:
            return await look(self._link, topic, subscription, self._token)
        except (DownError, KazooException):
            return RemoteGroup()

    def sure(self) -> bool:
        """Return whether the session certainly stands."""
        return self._link.sure()

    def trouble(self) -> str | None:
        """Return a sentence while ZooKeeper cannot be reached, or refuses."""
        if not self._link.is_up:
            return f"ZooKeeper at {self._link.where} cannot be reached"
        return self._refusal

    async def close(self) -> None:
        """Stop everything; the end of the session gives everything back."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._entries.clear()
        self._leaving.clear()
        self._rosters.clear()
        self._listener = None
        await self._link.close()

    def held(self, entry: Entry, note: bytes) -> None:
        """Tell that a lease is held."""
        self._refuse(None)
        if self._listener is not None:
            self._listener.held(entry.lease, note)

    def lost(self, entry: Entry) -> None:
        """Tell that somebody took a lease away."""
        _log.warning("lease-taken-away", lease=str(entry.lease))
        if self._listener is not None:
            self._listener.lost(entry.lease)

    def queued(self, entry: Entry) -> None:
        """Tell that another node holds a lease."""
        self._refuse(None)
        if self._listener is not None:
            self._listener.queued(entry.lease)

    def wanted(self, entry: Entry) -> None:
        """Tell that another node wants a lease."""
        if self._listener is not None:
            self._listener.wanted(entry.lease)

    def _up(self, anew: bool) -> None:
        for entry in (*self._entries.values(), *self._leaving):
            entry.interrupted(anew=anew)
            self._start(entry)
        for roster in self._rosters.values():
            self._attend(roster)
        if anew:
            self._sweep.mark_all()
        self._run(self._sweep, self._sweep.run)
        self._trouble_changed()

    def _down(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._refusal = None
        lost = [lease for lease, entry in self._entries.items() if entry.held]
        for entry in (*self._entries.values(), *self._leaving):
            entry.interrupted(anew=False)
        for lease in lost:
            if self._listener is not None:
                self._listener.lost(lease)
        self._trouble_changed()

    def _trouble_changed(self) -> None:
        if self._listener is not None:
            self._listener.troubled()

    def _start(self, entry: Entry) -> None:
        """Have an entry stand, or leave, while the link is up."""
        self._run(entry, lambda: self._tend(entry))

    async def _tend(self, entry: Entry) -> None:
        if entry in self._leaving:
            alone = await entry.leave()
            self._leaving.discard(entry)
            await self._clear(entry.folder, LEASES, alone)
        else:
            await entry.stand(self)

    def _attend(self, roster: Roster) -> None:
        if roster in self._tasks:
            roster.wake()
        else:
            self._run(roster, lambda: self._call_roll(roster))

    async def _call_roll(self, roster: Roster) -> None:
        while True:
            alone = await roster.attend(self._heard_of)
            if not roster.own:
                break
        del self._rosters[roster.topic, roster.subscription]
        await self._clear(roster.folder, IDS, alone)

    async def _clear(self, folder: str, root: str, alone: bool) -> None:
        """Take a folder away, now or after a look at it, if nobody is in it."""
        if alone:
            await tidy(self._link, folder, self._link.path(root))
        else:
            self._sweep.mark(folder, self._link.path(root))

    def _heard_of(self, roster: Roster, consumers: frozenset[str]) -> None:
        if self._listener is not None:
            self._listener.others(roster.topic, roster.subscription, consumers)

    def _run(self, of: object, work: Callable[[], Awaitable[None]]) -> None:
        if self._link.is_up:
            self._tasks[of] = asyncio.create_task(self._persist(of, work))

    def _stop(self, of: object) -> None:
        task = self._tasks.pop(of, None)
        if task is not None:
            task.cancel()

    async def _persist(self, of: object, work: Callable[[], Awaitable[None]]) -> None:
        """Do something, again after a while when ZooKeeper refuses; the link's end ends it."""
        pause = FIRST_PAUSE
        while True:
            try:
                await work()
            except DownError:
                break
            except KazooException as error:
                _log.warning("zookeeper-refuses", error=repr(error))
                self._refuse(f"ZooKeeper at {self._link.where} refuses: {type(error).__name__}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                break
        if self._tasks.get(of) is asyncio.current_task():
            del self._tasks[of]

    def _refuse(self, refusal: str | None) -> None:
        changed = refusal != self._refusal
        self._refusal = refusal
        if changed:
            self._trouble_changed()
