"""What is kept of a consumer group on disk, as long as it has members: one record of the registry.

It is a JSON array behind the head that records of classic groups have as well, with another
version. It holds the epochs, what members read, and which partitions each has, gives up and is to
have, as Apache Kafka writes to `__consumer_offsets` in several records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from router.broker.kafka.assignors import Assignment
from router.broker.kafka.consumer_group_values import (
    ClassicTerms,
    ConsumerMember,
    MemberState,
    TopicShape,
)
from router.broker.kafka.group_records import opened, sealed

CONSUMER_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class ConsumerGroupRecord:
    """A group, with the topics that its members read; no session of a member has begun."""

    epoch: int
    assignment_epoch: int
    shapes: Mapping[str, TopicShape]
    members: tuple[ConsumerMember, ...]

    def dump(self) -> bytes:
        """Return the record as bytes that `load` understands."""
        numbers: dict[bytes, int] = {}
        members = [_dump_member(one, numbers) for one in self.members]
        shapes = [(name, _number(s.id, numbers), s.partitions) for name, s in self.shapes.items()]
        ids = [topic.hex() for topic in numbers]
        head = self.epoch, self.assignment_epoch
        return sealed(CONSUMER_VERSION, orjson.dumps([*head, ids, shapes, members]))

    @classmethod
    def load(cls, value: bytes) -> ConsumerGroupRecord:
        """Return the record of bytes; raise ValueError if these are none."""
        body = orjson.loads(opened(CONSUMER_VERSION, value))
        epoch, assignment_epoch, hexadecimal, shapes, members = body
        ids = [bytes.fromhex(one) for one in hexadecimal]
        found = {name: TopicShape(ids[number], count) for name, number, count in shapes}
        loaded = tuple(_load_member(one, ids) for one in members)
        return cls(epoch, assignment_epoch, found, loaded)


def _dump_member(member: ConsumerMember, numbers: dict[bytes, int]) -> list[Any]:
    return [
        member.id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rack_id,
        member.rebalance_seconds,
        sorted(member.names),
        member.pattern,
        sorted(member.matched),
        member.assignor,
        member.epoch,
        member.previous_epoch,
        member.state.value,
        None if member.classic is None else _dump_terms(member.classic),
        *(_dump(part, numbers) for part in (member.assigned, member.revoking, member.target)),
        member.owner,
    ]


def _load_member(fields: list[Any], ids: list[bytes]) -> ConsumerMember:
    member_id, instance_id, client_id, client_host, rack_id, rebalance, *rest = fields
    names, pattern, matched, assignor, epoch, previous, state, classic, *parts = rest
    assigned, revoking, target = (_load(part, ids) for part in parts[:3])
    return ConsumerMember(
        id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rack_id=rack_id,
        rebalance_seconds=rebalance,
        names=frozenset(names),
        pattern=pattern,
        matched=frozenset(matched),
        assignor=assignor,
        epoch=epoch,
        previous_epoch=previous,
        state=MemberState(state),
        assigned=assigned,
        revoking=revoking,
        target=target,
        classic=None if classic is None else _load_terms(classic),
        owner="".join(parts[3:]),  # records of earlier versions have none
    )


def _dump_terms(terms: ClassicTerms) -> list[Any]:
    return [terms.session_seconds, [(name, data.hex()) for name, data in terms.protocols]]


def _load_terms(fields: list[Any]) -> ClassicTerms:
    session_seconds, protocols = fields
    return ClassicTerms(
        session_seconds, tuple((name, bytes.fromhex(data)) for name, data in protocols)
    )


def _dump(assignment: Assignment, numbers: dict[bytes, int]) -> list[tuple[int, list[int]]]:
    found: dict[int, list[int]] = {}
    for topic, partition in sorted(assignment):
        found.setdefault(_number(topic, numbers), []).append(partition)
    return list(found.items())


def _load(pairs: Iterable[tuple[int, list[int]]], ids: list[bytes]) -> Assignment:
    return frozenset((ids[number], one) for number, partitions in pairs for one in partitions)


def _number(topic: bytes, numbers: dict[bytes, int]) -> int:
    return numbers.setdefault(topic, len(numbers))
