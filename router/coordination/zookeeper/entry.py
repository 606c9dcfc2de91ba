"""One place in the queue for one lease: how the node gets into it, waits, holds, and leaves.

Theory of operation. An entry is an ephemeral node with a sequence number; the lowest holds the
lease, and nobody holds it who has not read the queue and seen itself there. Who waits watches the
entry directly ahead, so that a hand-over wakes one node and not all of them. The holder watches the
whole queue: an entry behind it means contention, and another client may have deleted it.

An answer that was lost with the connection may have made an entry that no node knows. Each entry's
name carries a token of its own, by which it is found again: that is looked for before another one
is made, and before an entry whose making was uncertain counts as gone. kazoo's Lock recipe, the
alternative, blocks a thread for each lock, and says that it is acquired after its session is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, Protocol

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType

from router.coordination import Lease
from router.coordination.zookeeper.link import ZooKeeperLink
from router.coordination.zookeeper.names import QueuePlace, escape, lease_path, queue

MAX_TRIES: Final = 20
MAX_NOTE_BYTES: Final = 8_192


class Observer(Protocol):
    """Whoever asked for a lease, and hears how it stands with it, on the loop."""

    def held(self, entry: QueueEntry, note: bytes) -> None:
        """Hear that the entry is the first, and what the one before it left."""
        ...

    def lost(self, entry: QueueEntry) -> None:
        """Take note that it was the first until it was deleted; it queues again."""
        ...

    def queued(self, entry: QueueEntry) -> None:
        """Hear that it waits for others."""
        ...

    def contended(self, entry: QueueEntry) -> None:
        """Hear that it is the first, and others wait; again whenever others come or go."""
        ...


class QueueEntry:
    """A node's standing in the queue for a lease; its calls are made while the link is up."""

    def __init__(self, link: ZooKeeperLink, lease: Lease, node: str, token: str) -> None:
        self.lease = lease
        self.held = False
        # What to leave to the next holder.
        self.note = b""
        # Who holds the lease, as far as it is known; None: this node, or unknown.
        self.holder: QueuePlace | None = None
        self._link = link
        self._token = token
        self._node = node
        self.folder = link.path(lease_path(lease))
        self._name = f"{self.folder}/{escape(node)}@{token}-"
        self._part: str | None = None
        # Whether there may be an entry of which no answer told.
        self._uncertain = False
        self._crowded = False
        self._next_up = False
        self._came = False
        self._woken = asyncio.Event()

    @property
    def absent(self) -> bool:
        """Whether there is certainly no entry."""
        return self._part is None and not self._uncertain

    def interrupted(self, *, anew: bool) -> None:
        """Hold nothing until `stand` says so again; `anew`: the session ended, and the entry."""
        self.held = self._next_up = False
        if anew:
            self._part = None

    async def stand(self, observer: Observer) -> None:
        """Queue, hold and tell of it, until this is cancelled; raise DownError with the link."""
        while True:
            await self._find()
            if self._part is None:
                await self._create()
            while await self._check(observer):
                pass
            self._part = None
            if self.held:
                self.held = False
                observer.lost(self)

    async def leave(self) -> bool:
        """Be gone from the queue; raise DownError if that is not certain yet.

        Return whether no other entry was seen in it: then its folders may be of no use.
        """
        await self._find()
        if self._part is not None:
            path = f"{self.folder}/{self._part}"
            with contextlib.suppress(NoNodeError):
                if self.note:
                    await self._link.ask(
                        lambda client: client.set_async(self.folder, self.note[:MAX_NOTE_BYTES])
                    )
                await self._link.ask(lambda client: client.delete_async(path))
            self._part = None
        return not self._crowded

    async def _create(self) -> None:
        data = self._node.encode()
        for _ in range(MAX_TRIES):
            self._uncertain = True
            try:
                # Not with kazoo's `makepath`, which may create long after the caller gave up.
                made = await self._link.ask(
                    lambda client: client.create_async(
                        self._name, data, ephemeral=True, sequence=True
                    )
                )
            except NoNodeError:
                self._uncertain = False
                await ensure(self._link, self.folder)
                continue
            self._part = made.rpartition("/")[2]
            self._uncertain = False
            return
        raise NoNodeError(self.folder)

    async def _find(self) -> None:
        """Find the entry that may be there."""
        if self._uncertain:
            places, _ = await self._queue()
            own = [place.part for place in places if place.token == self._token]
            self._part = own[0] if own else None
            self._uncertain = False

    async def _check(self, observer: Observer) -> bool:
        """See where the entry stands, tell, and wait for a change; return whether it is there."""
        self._woken.clear()
        self._came = False
        # Who holds watches from the first; who waits is not woken by those behind it.
        watched = self.held or self._next_up
        places, noted = await self._queue(watched=watched)
        parts = [place.part for place in places]
        if self._part not in parts:
            return False
        self._crowded = len(parts) > 1
        index = parts.index(self._part)
        if index == 0:
            await self._first(observer, noted=noted)
            if not watched:
                return True
        elif not await self._wait_for_previous(places, index, observer):
            return True
        await self._woken.wait()
        if self._came and not self._crowded:
            # Nobody was behind this entry and the queue changed: no need to look who it is.
            observer.contended(self)
            await asyncio.sleep(0)  # if the lease was released, this ends here
        return True

    async def _first(self, observer: Observer, *, noted: bool) -> None:
        self._next_up = False
        if not self.held:
            note = await self._take_note() if noted else b""
            self.held, self.holder = True, None
            observer.held(self, note)
        if self._crowded:
            observer.contended(self)

    async def _wait_for_previous(
        self, places: list[QueuePlace], index: int, observer: Observer
    ) -> bool:
        """Watch the entry directly ahead; return whether it was still there."""
        self.holder = places[0]
        self._next_up = index == 1
        observer.queued(self)
        ahead, watch = f"{self.folder}/{places[index - 1].part}", self._link.on_loop(self._wake)
        there = await self._link.ask(lambda client: client.exists_async(ahead, watch))
        return there is not None

    async def _take_note(self) -> bytes:
        """Return what the last holder left in the folder, and remove it."""
        note, _ = await self._link.ask(lambda client: client.get_async(self.folder))
        await self._link.ask(lambda client: client.set_async(self.folder, b""))
        return note or b""

    async def _queue(self, *, watched: bool = False) -> tuple[list[QueuePlace], bool]:
        """Return who stands in the queue, and whether there is a note in its folder."""
        watch = self._link.on_loop(self._queue_changed) if watched else None
        with contextlib.suppress(NoNodeError):
            parts, stat = await self._link.ask(
                lambda client: client.get_children_async(self.folder, watch, include_data=True)
            )
            return queue(parts), stat.dataLength > 0
        return [], False

    def _queue_changed(self, event: Any) -> None:
        self._came = self.held and event.type == EventType.CHILD
        self._woken.set()

    def _wake(self, event: Any) -> None:
        del event
        self._woken.set()


async def ensure(link: ZooKeeperLink, folder: str) -> None:
    """Have a folder, and those above it."""
    await link.ask(lambda client: client.ensure_path_async(folder))
