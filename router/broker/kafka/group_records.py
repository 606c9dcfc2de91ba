"""Owns what is kept of a group on disk: one record of the node's registry for each with members.

A record holds what the last completed rebalance decided, as the group metadata that Apache Kafka
writes to `__consumer_offsets`. It is a version in one byte, a checksum of what follows it in four,
the size of a JSON array in four, this array, and the byte strings that the array names by their
numbers: metadata and assignments, each once, since most members of a group have the same.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any, Final

import orjson
import structlog

from router.broker.kafka.group_values import Member
from router.errors import BadRequestError, RouterError
from router.sharing.registry import ANY, GROUP_RECORDS, AsyncRegistry, all_records
from router.wire.kafka.error_codes import ErrorCode

_VERSION: Final = 1
_HEAD: Final = Struct(">BI")
_SIZE: Final = Struct(">I")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group after a completed rebalance, its members in the order in which they came.

    Of a member that is loaded neither a session has begun nor a request waits.
    """

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[Member[Any], ...]

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
            )
            for one in self.members
        ]
        group = self.generation, self.protocol_type, self.protocol, self.leader
        head = orjson.dumps([*group, members, [len(data) for data in numbers]])
        body = b"".join((_SIZE.pack(len(head)), head, *numbers))
        return _HEAD.pack(_VERSION, zlib.crc32(body)) + body

    @classmethod
    def load(cls, value: bytes) -> GroupRecord:
        """Return the record of bytes; raise ValueError if these are none."""
        if len(value) < _HEAD.size + _SIZE.size:
            raise ValueError("it is cut short")
        version, checksum = _HEAD.unpack_from(value)
        if version != _VERSION:
            raise ValueError(f"it has the version {version}")
        if zlib.crc32(value[_HEAD.size :]) != checksum:
            raise ValueError("its checksum is wrong")
        (size,) = _SIZE.unpack_from(value, _HEAD.size)
        start = _HEAD.size + _SIZE.size
        generation, kind, protocol, leader, members, sizes = orjson.loads(
            value[start : start + size]
        )
        ends = pairwise(accumulate(sizes, initial=start + size))
        data = [value[begin:end] for begin, end in ends]
        found = tuple(_member(one, data) for one in members)
        return cls(generation, kind, protocol, leader, found)


def _member(fields: list[Any], data: list[bytes]) -> Member[Any]:
    member_id, instance_id, client_id, client_host, session, rebalance, offered, assignment = fields
    protocols = tuple((name, data[number]) for name, number in offered)
    return Member(
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
    )


class GroupRecords:
    """The records of all groups. Calls that change them are served in their order."""

    def __init__(self, registry: AsyncRegistry) -> None:
        self._registry = registry

    async def load(self) -> AsyncIterator[tuple[str, GroupRecord]]:
        """Yield the records by the ids of their groups; one that is damaged is logged and deleted.

        Raises BackendUnavailableError.
        """
        async for one in all_records(self._registry, GROUP_RECORDS):
            try:
                yield one.name, GroupRecord.load(one.value)
            except ValueError as error:
                _log.warning("kafka-group-damaged", group=one.name, reason=str(error))
                await self._registry.delete(GROUP_RECORDS, one.name)

    async def save(self, group_id: str, record: bytes | None) -> ErrorCode:
        """Store the record of a group, None: it has no members; return whether that is on disk.

        The answer is that of Apache Kafka to members whose group cannot be stored.
        """
        try:
            if record is None:
                await self._registry.delete(GROUP_RECORDS, group_id)
            else:
                await self._registry.put(GROUP_RECORDS, group_id, record, ANY)
        except RouterError as error:
            _log.warning("kafka-group-not-stored", group=group_id, reason=str(error))
            too_large = isinstance(error, BadRequestError)
            return (
                ErrorCode.GROUP_MAX_SIZE_REACHED
                if too_large
                else ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        return ErrorCode.NONE
