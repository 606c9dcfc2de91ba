"""One group as it stands in ZooKeeper now: read for administration, and not watched."""

from __future__ import annotations

import asyncio
from typing import Final

from kazoo.exceptions import NoNodeError

from router.coordination import Lease, RemoteGroup
from router.coordination.zookeeper.link import Link
from router.coordination.zookeeper.names import (
    Place,
    group_path,
    ids_path,
    lease_path,
    live_id,
    queue,
)

MAX_LEASES: Final = 1_000
"""Partitions whose queues are read."""


async def look(link: Link, topic: str, subscription: str, token: str) -> RemoteGroup:
    """Return what the nodes tell of a group; `token` is how this node knows its own entries.

    Raises DownError, and kazoo's exceptions.
    """
    ids = [live_id(part) for part in await _children(link, ids_path(topic, subscription))]
    parts = await _children(link, group_path(topic, subscription))
    numbers = sorted(int(part) for part in parts if part.removeprefix("-").isdecimal())

    async def queued(number: int) -> tuple[str, ...]:
        places = queue(await _children(link, lease_path(Lease(topic, subscription, number))))
        return tuple(_node(place, token) for place in places)

    chosen = numbers[:MAX_LEASES]
    queues = await asyncio.gather(*map(queued, chosen))
    return RemoteGroup(
        tuple(sorted((consumer, node) for consumer, node, of in ids if of != token)),
        {number: nodes for number, nodes in zip(chosen, queues, strict=True) if nodes},
    )


def _node(place: Place, token: str) -> str:
    """Return the node of an entry, "" for this one."""
    return "" if place.token.startswith(f"{token}.") else place.node


async def _children(link: Link, path: str) -> list[str]:
    try:
        found = await link.ask(lambda client: client.get_children_async(link.path(path)))
    except NoNodeError:
        return []
    return list(found)
