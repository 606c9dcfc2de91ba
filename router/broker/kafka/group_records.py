"""Owns what is kept of a classic group on disk: a record of the node's registry if it has members.

A record holds what the last completed rebalance decided, as the group metadata that Apache Kafka
writes to `__consumer_offsets`. It is a version in one byte, a checksum of what follows it in four,
the size of a JSON array in four, this array, and the byte strings that the array names by their
numbers: metadata and assignments, each once, since most members of a group have the same. Records
of consumer groups (`consumer_group_records.py`) differ in the version, and lie beside them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any, Final

import orjson

from router.broker.kafka.group_values import KafkaMember

CLASSIC_VERSION: Final = 1
_HEAD: Final = Struct(">BI")
_SIZE: Final = Struct(">I")


def sealed(version: int, body: bytes) -> bytes:
    """Return the bytes of a record of a version."""
    return _HEAD.pack(version, zlib.crc32(body)) + body


def opened(version: int, value: bytes) -> bytes:
    """Return what was sealed with a version; raise ValueError if it is not whole, or another."""
    if len(value) < _HEAD.size + _SIZE.size:
        raise ValueError("it is cut short")
    found, checksum = _HEAD.unpack_from(value)
    if found != version:
        raise ValueError(f"it has the version {found}")
    if zlib.crc32(value[_HEAD.size :]) != checksum:
        raise ValueError("its checksum is wrong")
    return value[_HEAD.size :]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group after a completed rebalance, its members in the order in which they came.

    Of a member that is loaded neither a session has begun nor a request waits.
    """

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[KafkaMember[Any], ...]

    def dump(self) -> bytes:
        """Return the record as bytes that `load` understands."""
        numbers: dict[bytes, int] = {}

        def number(data: bytes) -> int:
            return numbers.setdefault(data, len(numbers))

        members = [
            (
                one.id,
                one.instance_id,
                one.client_id,
                one.client_host,
                one.session_seconds,
                one.rebalance_seconds,
                [(name, number(metadata)) for name, metadata in one.protocols],
                number(one.assignment),
                one.owner,
            )
            for one in self.members
        ]
        group = self.generation, self.protocol_type, self.protocol, self.leader
        head = orjson.dumps([*group, members, [len(data) for data in numbers]])
        body = b"".join((_SIZE.pack(len(head)), head, *numbers))
        return sealed(CLASSIC_VERSION, body)

    @classmethod
    def load(cls, value: bytes) -> GroupRecord:
        """Return the record of bytes; raise ValueError if these are none."""
        body = opened(CLASSIC_VERSION, value)
        (size,) = _SIZE.unpack_from(body)
        start = _SIZE.size
        generation, kind, protocol, leader, members, sizes = orjson.loads(
            body[start : start + size]
        )
        ends = pairwise(accumulate(sizes, initial=start + size))
        data = [body[begin:end] for begin, end in ends]
        found = tuple(_member(one, data) for one in members)
        return cls(generation, kind, protocol, leader, found)


def _member(fields: list[Any], data: list[bytes]) -> KafkaMember[Any]:
    member_id, instance_id, client_id, client_host, session, rebalance, *rest = fields
    offered, assignment, *owner = rest
    protocols = tuple((name, data[number]) for name, number in offered)
    return KafkaMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        session,
        rebalance,
        protocols,
        deadline=0.0,
        assignment=data[assignment],
        answered=True,
        owner="".join(owner),  # records of earlier versions have none
    )
