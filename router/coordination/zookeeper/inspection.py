"""Leases and live ids as they stand in ZooKeeper, shown to operators, and taken from their holders.

Nothing is locked: a view of a group is true of the moment at which each of its folders was read.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.coordination import Lease
from router.coordination.zookeeper import names
from router.coordination.zookeeper.tree import ZooKeeperTree, opened


@dataclass(frozen=True, slots=True)
class PartitionView:
    """Who holds the lease of a partition, None: no node, and which nodes queue for it."""

    partition: int
    holder: str | None
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group: its live ids, each with the nodes where it is live, and its leases."""

    topic: str
    group: str
    ids: dict[str, tuple[str, ...]]
    partitions: tuple[PartitionView, ...]


def show(servers: str, digest: str, timeout: float) -> list[GroupView]:
    """Return all groups in which a node has a lease or a live id, by topic and group.

    `servers` as in the setting. Raises SettingError, CoordinationUnavailableError.
    """
    with opened(servers, timeout, digest) as tree:
        found = {
            (names.unescape(topic), names.unescape(group))
            for root in (names.LEASES, names.IDS)
            for topic in tree.children(root)
            for group in tree.children(f"{root}/{topic}")
        }
        views = [_group(tree, topic, group) for topic, group in sorted(found)]
    return [view for view in views if view.ids or view.partitions]


def release(
    servers: str, digest: str, topic: str, group: str, partition: int | None, timeout: float
) -> int:
    """Take leases of a group from their holders, None: all; return how many were.

    `topic` is the full name. A holder that still wants the partition queues again, behind those
    who wait already. Raises SettingError, CoordinationUnavailableError.
    """
    with opened(servers, timeout, digest) as tree:
        partitions = _partitions(tree, topic, group) if partition is None else [partition]
        return sum(_take(tree, Lease(topic, group, number)) for number in partitions)


def _partitions(tree: ZooKeeperTree, topic: str, group: str) -> list[int]:
    parts = tree.children(names.group_path(topic, group))
    return sorted(int(part) for part in parts if part.removeprefix("-").isdecimal())


def _group(tree: ZooKeeperTree, topic: str, group: str) -> GroupView:
    ids: dict[str, tuple[str, ...]] = {}
    for part in sorted(tree.children(names.ids_path(topic, group))):
        consumer, node, _ = names.live_id(part)
        ids[consumer] = (*ids.get(consumer, ()), node)
    views = (
        _view(number, names.queue(tree.children(names.lease_path(Lease(topic, group, number)))))
        for number in _partitions(tree, topic, group)
    )
    return GroupView(topic, group, ids, tuple(view for view in views if view.holder is not None))


def _view(partition: int, places: list[names.QueuePlace]) -> PartitionView:
    nodes = [place.node for place in places]
    return PartitionView(partition, nodes[0] if nodes else None, tuple(nodes[1:]))


def _take(tree: ZooKeeperTree, lease: Lease) -> bool:
    """Delete the holder's entry; return whether there was one."""
    path = names.lease_path(lease)
    places = names.queue(tree.children(path))
    return bool(places) and tree.delete(f"{path}/{places[0].part}")
