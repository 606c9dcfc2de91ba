"""Who polls a group and who holds its partitions, as administration is told."""

from __future__ import annotations

from itertools import islice
from typing import Final

from router.broker.leases.polls import Group, Poll
from router.coordination import RemoteGroup
from router.wire.pulsar import pulsar_pb2 as pb

MAX_MEMBERS: Final = 2_000
"""Consumer ids of an answer, which has to fit into a frame."""
MAX_LEASES: Final = 2_000
"""Partitions of an answer."""


def members(
    group: Group | None, remote: RemoteGroup, trouble: str | None, now: float
) -> pb.GroupMembers:
    """Return the consumer ids and leases of a group, here and on other nodes; `now` in seconds."""
    found = pb.GroupMembers(trouble=trouble)
    local = sorted(group.deal.live()) if group is not None else []
    others = len(local) + len(remote.members)
    if group is not None:
        found.members.extend(_local(group, one, now) for one in islice(local, MAX_MEMBERS))
    room = MAX_MEMBERS - len(found.members)
    found.members.extend(
        pb.GroupMember(consumer=consumer, node=node)
        for consumer, node in islice(remote.members, room)
    )
    held = {p for p, share in group.shares.items() if share.held} if group is not None else set()
    partitions = sorted(held | remote.queues.keys())
    for partition in islice(partitions, MAX_LEASES):
        found.leases.append(_lease(group, remote, partition))
    found.cut = others > MAX_MEMBERS or len(partitions) > MAX_LEASES
    return found


def _local(group: Group, consumer: str, now: float) -> pb.GroupMember:
    member = pb.GroupMember(consumer=consumer)
    polls = group.deal.queued(consumer)
    member.polls = len(polls)
    if polls:
        member.polling_ms = _ms(now - polls[0].since)
    elif (ended := group.deal.ended(consumer)) is not None:
        member.idle_ms = _ms(now - ended)
    return member


def _lease(group: Group | None, remote: RemoteGroup, partition: int) -> pb.GroupLease:
    """Return who holds a partition: what this node holds itself it knows best."""
    lease = pb.GroupLease(partition=partition)
    nodes = remote.queues.get(partition, ())
    share = group.shares.get(partition) if group is not None else None
    if share is not None and share.held:
        poll: Poll | None = share.poll
        if poll is not None:
            lease.consumer = poll.consumer
        lease.waiting.extend(node for node in nodes if node)
    elif nodes and nodes[0]:
        lease.node = nodes[0]
        lease.waiting.extend(nodes[1:])
    return lease


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
