"""The Coordinator over ZooKeeper: all entries and rosters of the node, and what they are told.

Every entry, and every roster, is one small task while the link is up. When the link goes all tasks
are cancelled and everything that was held is lost at once; when it is back each is started again,
and looks at what is there before it says that it holds anything: what outlived the break in the
same session is taken up, after the end of a session it is queued for again.

Nothing here waits for ZooKeeper on behalf of a caller. What a node lets go is deleted by a task of
its own, which is started again after each break until it is done or the session is over.

One group as it stands in ZooKeeper now is read for administration, and not watched.

Empty folders are deleted, so that the tree is no larger than what stands in it. A node that leaves
a queue alone deletes its folders at once. Where others were seen, the last of them
cannot be known without asking: such folders are looked at again after a while, each once however
often its lease changed hands. What nodes left that were killed is found when a session begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from kazoo.exceptions import KazooException, NoNodeError, NotEmptyError

from router.clocks.backoff import Backoff
from router.coordination import Lease, LeaseListener, RemoteGroup
from router.coordination.zookeeper import names
from router.coordination.zookeeper.entry import QueueEntry
from router.coordination.zookeeper.link import DownError, ZooKeeperLink
from router.coordination.zookeeper.roster import Roster

MIN_PAUSE_SECONDS: Final = 0.05
MAX_PAUSE_SECONDS: Final = 5.0
_log = structlog.get_logger(__name__)
MAX_LEASES: Final = 1_000
"""Partitions whose queues are read."""


async def read_group(link: ZooKeeperLink, topic: str, subscription: str, token: str) -> RemoteGroup:
    """Return what the nodes tell of a group; `token` is how this node knows its own entries.

    Raises DownError, and kazoo's exceptions.
    """
    ids = [
        names.live_id(part) for part in await _children(link, names.ids_path(topic, subscription))
    ]
    parts = await _children(link, names.group_path(topic, subscription))
    numbers = sorted(int(part) for part in parts if part.removeprefix("-").isdecimal())

    async def queued(number: int) -> tuple[str, ...]:
        places = names.queue(
            await _children(link, names.lease_path(Lease(topic, subscription, number)))
        )
        return tuple(_node(place, token) for place in places)

    chosen = numbers[:MAX_LEASES]
    queues = await asyncio.gather(*map(queued, chosen))
    return RemoteGroup(
        tuple(sorted((consumer, node) for consumer, node, of in ids if of != token)),
        {number: nodes for number, nodes in zip(chosen, queues, strict=True) if nodes},
    )


SWEEP_SECONDS: Final = 30.0
FULL_SWEEPS: Final = 2
"""A node that is started again soon finds entries that stand until its last session is over."""
LEASES_DEPTH: Final = 3
IDS_DEPTH: Final = 2


class ZookeeperCoordinator:
    """The node's part in the coordination through ZooKeeper; `node` is its name for people."""

    def __init__(self, link: ZooKeeperLink, node: str) -> None:
        self._link = link
        self._node = node
        self._token = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._listener: LeaseListener | None = None
        self._entries: dict[Lease, QueueEntry] = {}
        self._leaving: dict[QueueEntry, None] = {}
        self._rosters: dict[tuple[str, str], Roster] = {}
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._refusal: str | None = None
        self._sweep = EmptyFolderTask(link)
        link.listen(self._up, self._down)

    def listen(self, listener: LeaseListener) -> None:
        """Tell this listener from now on."""
        self._listener = listener

    def acquire(self, lease: Lease) -> None:
        """Queue for a lease, now or when the link is up."""
        if lease not in self._entries:
            token = f"{self._token}.{next(self._numbers)}"
            self._entries[lease] = entry = QueueEntry(self._link, lease, self._node, token)
            self._start(entry)

    def release(self, lease: Lease, note: bytes = b"") -> None:
        """Leave the queue for a lease."""
        entry = self._entries.pop(lease, None)
        if entry is not None:
            self._stop(entry)
            entry.note = note
            entry.interrupted(anew=False)
            if self._link.is_up or not entry.absent:
                self._leaving[entry] = None
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

    async def remote_group(self, topic: str, subscription: str) -> RemoteGroup:
        """Return a group as ZooKeeper has it at this moment; empty in trouble."""
        try:
            return await read_group(self._link, topic, subscription, self._token)
        except (DownError, KazooException):
            return RemoteGroup()

    def is_valid(self) -> bool:
        """Return whether the session certainly stands."""
        return self._link.is_valid()

    def unavailable_reason(self) -> str | None:
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

    def held(self, entry: QueueEntry, note: bytes) -> None:
        """Tell that a lease is held."""
        self._refuse(None)
        if self._listener is not None:
            self._listener.held(entry.lease, note)

    def lost(self, entry: QueueEntry) -> None:
        """Log that a lease was taken away."""
        _log.warning("lease-taken-away", lease=str(entry.lease))
        if self._listener is not None:
            self._listener.lost(entry.lease)

    def queued(self, entry: QueueEntry) -> None:
        """Tell that another node holds a lease."""
        self._refuse(None)
        if self._listener is not None:
            self._listener.queued(entry.lease)

    def contended(self, entry: QueueEntry) -> None:
        """Tell that another node wants a lease."""
        if self._listener is not None:
            self._listener.contended(entry.lease)

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
            self._listener.availability_changed()

    def _start(self, entry: QueueEntry) -> None:
        """Have an entry stand, or leave, while the link is up."""
        self._run(entry, lambda: self._tend(entry))

    async def _tend(self, entry: QueueEntry) -> None:
        if entry in self._leaving:
            alone = await entry.leave()
            self._leaving.pop(entry, None)
            await self._clear(entry.folder, names.LEASES, alone)
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
        await self._clear(roster.folder, names.IDS, alone)

    async def _clear(self, folder: str, root: str, alone: bool) -> None:
        """Take a folder away, now or after it was read, if it is empty."""
        if alone:
            await tidy(self._link, folder, self._link.path(root))
        else:
            self._sweep.mark(folder, self._link.path(root))

    def _heard_of(self, roster: Roster, consumers: frozenset[str]) -> None:
        if self._listener is not None:
            self._listener.remote_members(roster.topic, roster.subscription, consumers)

    def _run(self, of: object, work: Callable[[], Awaitable[None]]) -> None:
        if self._link.is_up:
            self._tasks[of] = asyncio.create_task(self._persist(of, work))

    def _stop(self, of: object) -> None:
        task = self._tasks.pop(of, None)
        if task is not None:
            task.cancel()

    async def _persist(self, of: object, work: Callable[[], Awaitable[None]]) -> None:
        """Do something, again after a while when ZooKeeper refuses; the link's end ends it."""
        pauses = Backoff(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            try:
                await work()
            except DownError:
                break
            except KazooException as error:
                _log.warning("zookeeper-refuses", error=repr(error))
                self._refuse(f"ZooKeeper at {self._link.where} refuses: {type(error).__name__}")
                await asyncio.sleep(pauses.next())
            else:
                break
        if self._tasks.get(of) is asyncio.current_task():
            del self._tasks[of]

    def _refuse(self, refusal: str | None) -> None:
        changed = refusal != self._refusal
        self._refusal = refusal
        if changed:
            self._trouble_changed()


def _node(place: names.QueuePlace, token: str) -> str:
    """Return the node of an entry, "" for this one."""
    return "" if place.token.startswith(f"{token}.") else place.node


async def _children(link: ZooKeeperLink, path: str) -> list[str]:
    try:
        found = await link.ask(lambda client: client.get_children_async(link.path(path)))
    except NoNodeError:
        return []
    return list(found)


class EmptyFolderTask:
    """Looks at folders that may be empty; `root` is the folder above that stays."""

    def __init__(self, link: ZooKeeperLink) -> None:
        self._link = link
        self._marked: dict[str, str] = {}
        self._full_sweeps = FULL_SWEEPS

    def mark(self, folder: str, root: str) -> None:
        """Have a folder looked at some time."""
        self._marked[folder] = root

    def mark_all(self) -> None:
        """Have all folders looked at soon, and once more later."""
        self._full_sweeps = FULL_SWEEPS

    async def run(self) -> None:
        """Sweep for ever; raise DownError with the link."""
        while True:
            if self._full_sweeps:
                for root, depth in ((names.LEASES, LEASES_DEPTH), (names.IDS, IDS_DEPTH)):
                    await self._check(self._link.path(root), self._link.path(root), depth)
                self._full_sweeps -= 1
            for folder in list(self._marked):
                await self._check(folder, self._marked[folder], 0)
                del self._marked[folder]
            await asyncio.sleep(SWEEP_SECONDS)

    async def _check(self, folder: str, root: str, depth: int) -> None:
        children: list[str] = []
        with contextlib.suppress(NoNodeError):
            children = await self._link.ask(lambda client: client.get_children_async(folder))
        if not children:
            await tidy(self._link, folder, root)
        elif depth:
            for child in children:
                await self._check(f"{folder}/{child}", root, depth - 1)


async def tidy(link: ZooKeeperLink, folder: str, root: str) -> None:
    """Delete a folder, and those above it up to `root`, as long as they are empty."""
    while folder.startswith(f"{root}/"):
        if not await _remove(link, folder):
            return
        folder = folder.rpartition("/")[0]


async def _remove(link: ZooKeeperLink, folder: str) -> bool:
    try:
        await link.ask(lambda client: client.delete_async(folder))
    except NotEmptyError:
        return False
    except NoNodeError:
        return True
    return True
