"""The live ids of one group: those of this node told to the others, those of the others heard.

Each id that is live on a node is an ephemeral entry. One look compares what is there with what
should be, makes and deletes the difference, and waits for the next change: what was lost with a
connection or deleted by hand comes right by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from router.coordination.zookeeper.entry import ensure
from router.coordination.zookeeper.link import ZooKeeperLink
from router.coordination.zookeeper.names import ids_path, live_id, live_part


class Roster:
    """The ids of a group as this node tells and hears of them; `own` is what it should tell."""

    def __init__(
        self, link: ZooKeeperLink, topic: str, subscription: str, node: str, token: str
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.own: set[str] = set()
        self._link = link
        self._node = node
        self._token = token
        self.folder = link.path(ids_path(topic, subscription))
        self._others: frozenset[str] | None = None
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look again: `own` has changed."""
        self._woken.set()

    def forget(self) -> None:
        """Report the other members again, also if they are the same as before."""
        self._others = None

    async def attend(self, remote_members: Callable[[Roster, frozenset[str]], None]) -> bool:
        """Tell and hear until this node has no id in the group; raise DownError with the link.

        Return whether no other member was seen: then its folders may be of no use.
        """
        while True:
            self._woken.clear()
            mine, foreign = await self._check()
            if foreign != self._others:
                self._others = foreign
                remote_members(self, foreign)
            wrong = mine ^ self.own
            for consumer in sorted(wrong):
                await self._correct(consumer)
            if wrong:
                continue
            if not self.own:
                return not foreign
            await self._woken.wait()

    async def _check(self) -> tuple[set[str], frozenset[str]]:
        """Return the ids that are told of: by this node, and by others."""
        mine: set[str] = set()
        foreign: set[str] = set()
        seen = self._link.on_loop(self._seen)
        parts: list[str] = []
        with contextlib.suppress(NoNodeError):
            parts = await self._link.ask(
                lambda client: client.get_children_async(self.folder, seen)
            )
        for part in parts:
            consumer, _, token = live_id(part)
            (mine if token == self._token else foreign).add(consumer)
        return mine, frozenset(foreign)

    async def _correct(self, consumer: str) -> None:
        path = f"{self.folder}/{live_part(consumer, self._node, self._token)}"
        try:
            if consumer in self.own:
                await self._link.ask(lambda client: client.create_async(path, ephemeral=True))
            else:
                await self._link.ask(lambda client: client.delete_async(path))
        except NoNodeError:
            if consumer in self.own:
                await ensure(self._link, self.folder)
        except NodeExistsError:
            pass

    def _seen(self, event: Any) -> None:
        del event
        self._woken.set()
