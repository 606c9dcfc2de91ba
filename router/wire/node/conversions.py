"""Values of the model as messages of the node protocol, and back: one table for both of its sides.

A dataclass and its message have fields of the same names, so that one walk over the fields of the
dataclass, planned when the module is loaded, converts either way. What is None is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

from router.metrics import Sample
from router.model import (
    GroupMembers,
    Member,
    PartitionLease,
    PartitionStats,
    PollOutcome,
    Position,
    Schema,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.model.administration import (
    ClientInfo,
    CursorDescription,
    EntryChoice,
    EntryRange,
    Namespace,
    NamespacePolicies,
    SchemaVersion,
    StoredEntry,
    Tenant,
)
from router.model.policies import Policies
from router.sharing.registry import RegistryRecord
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb
from router.wire.pulsar import schemas

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Convert = Callable[[Any], Any]


OUTCOMES: Final = {
    PollOutcome.REFUSED: npb.CommandRelease.REFUSED,
    PollOutcome.EMPTY: npb.CommandRelease.EMPTY,
    PollOutcome.DELIVERED: npb.CommandRelease.DELIVERED,
}
"""How a poll ended, in the protocol's words."""


def to_pairs(properties: Mapping[str, str]) -> list[pb.KeyValue]:
    """Return properties as the protocol lists them."""
    return [pb.KeyValue(key=key, value=value) for key, value in properties.items()]


def from_pairs(pairs: Iterable[pb.KeyValue]) -> dict[str, str]:
    """Return the properties that the protocol lists."""
    return {pair.key: pair.value for pair in pairs}


def to_message_id(position: Position) -> pb.MessageIdData:
    """Return the message id that stands for a position."""
    return pb.MessageIdData(
        ledgerId=position.ledger,
        entryId=position.entry,
        partition=position.partition,
        batch_index=position.batch_index,
        batch_size=position.batch_size,
        router_epoch=position.epoch,
    )


def from_message_id(found: pb.MessageIdData) -> Position:
    """Return the position that a message id stands for."""
    return Position(
        found.ledgerId,
        found.entryId,
        found.partition,
        found.batch_index,
        found.batch_size,
        found.router_epoch,
    )


def to_samples(samples: Iterable[Sample]) -> list[npb.Sample]:
    """Return samples of metrics in the protocol's words."""
    return [
        npb.Sample(name=name, labels=to_pairs(dict(labels)), value=value)
        for name, labels, value in samples
    ]


def from_samples(found: Iterable[npb.Sample]) -> list[Sample]:
    """Return the samples of metrics that the protocol lists."""
    return [(one.name, tuple(from_pairs(one.labels).items()), one.value) for one in found]


class MessageCodec(Generic[T, M]):
    """The values of one dataclass as messages of one type.

    Raises TypeError when it is made, if the message lacks a field of the dataclass that is not in
    `local`: those stay on their side.
    """

    def __init__(self, kind: type[T], message: type[M], *local: str) -> None:
        self._kind: Final = kind
        self._message: Final = message
        self._fields: list[_Field] = []
        hints = get_type_hints(kind)
        described: Any = message.DESCRIPTOR
        for field in fields(kind):  # type: ignore[arg-type] # any dataclass
            if field.name in local:
                continue
            found = described.fields_by_name.get(field.name)
            if found is None:
                raise TypeError(f"{message.__name__} has no field {field.name}")
            needed = field.default is MISSING and field.default_factory is MISSING
            self._fields.append(_Field(field.name, hints[field.name], found, needed=needed))

    def encode(self, value: T) -> M:
        """Return the message of a value."""
        given = {}
        for field in self._fields:
            found = getattr(value, field.name)
            if found is not None:
                given[field.name] = field.encode(found) if field.encode else found
        return self._message(**given)

    def decode(self, message: M) -> T:
        """Return the value of a message; what is absent has the default of the dataclass."""
        given = {}
        for field in self._fields:
            if field.repeated or field.needed or message.HasField(field.name):
                found = getattr(message, field.name)
                given[field.name] = field.decode(found) if field.decode else found
        return self._kind(**given)


class _Field:
    """How one field is converted; None: as it is."""

    __slots__ = ("decode", "encode", "name", "needed", "repeated")

    def __init__(self, name: str, hint: Any, described: Any, *, needed: bool) -> None:
        self.name = name
        self.repeated = described.is_repeated
        self.needed = needed
        self.encode, self.decode = _converters(_without_none(hint), described)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in {Union, UnionType}:
        (hint,) = [one for one in get_args(hint) if one is not NoneType]
    return hint


def _converters(hint: Any, described: Any) -> tuple[Convert | None, Convert | None]:
    if get_origin(hint) is tuple:
        encode, decode = _converters(get_args(hint)[0], described)
        return _each(encode, list), _each(decode, tuple)
    if get_origin(hint) is Mapping:
        return to_pairs, from_pairs
    if hint in _CONVERTERS:
        return _CONVERTERS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: value.value, hint
    return None, None


def _each(convert: Convert | None, kind: Callable[[Iterable[Any]], Any]) -> Convert:
    return kind if convert is None else lambda found: kind(map(convert, found))


_CONVERTERS: Final[dict[Any, tuple[Convert, Convert]]] = {
    TopicName: (str, TopicName.parse),
    Position: (to_message_id, from_message_id),
    Schema: (schemas.to_wire, schemas.from_wire),
    EntryRange: (
        lambda entries: npb.EntryRange(first=entries.first, last=entries.last),
        lambda found: EntryRange(found.first, found.last),
    ),
}


def codec(kind: type[T], message: type[M], *local: str) -> MessageCodec[T, M]:
    """Return the codec of a dataclass, which later ones use for its values; see `MessageCodec`."""
    made = MessageCodec(kind, message, *local)
    _CONVERTERS[kind] = made.encode, made.decode
    return made


RECORD: Final = codec(RegistryRecord, npb.RegistryRecord)
MEMBER: Final = codec(Member, npb.GroupMember)
LEASE: Final = codec(PartitionLease, npb.GroupLease)
MEMBERS: Final = codec(GroupMembers, npb.GroupMembers)
POLICIES: Final = codec(Policies, npb.Policies, "replicas")
TOPIC_INFO: Final = codec(TopicInfo, npb.TopicInfo, "internal")
PARTITION_STATS: Final = codec(PartitionStats, npb.PartitionStats)
SUBSCRIPTION_STATS: Final = codec(SubscriptionStats, npb.SubscriptionStats)
TOPIC_STATS: Final = codec(TopicStats, npb.TopicStats)
NAMESPACE_POLICIES: Final = codec(NamespacePolicies, npb.Policies)
NAMESPACE: Final = codec(Namespace, npb.NamespaceInfo)
TENANT: Final = codec(Tenant, npb.Tenant)
CLIENT: Final = codec(ClientInfo, npb.ClientInfo)
# Entries that are acknowledged in part need the ledger of their cursor.
CURSOR: Final = codec(CursorDescription, npb.CursorState, "partial")
ENTRY_CHOICE: Final = codec(EntryChoice, npb.ReadEntry)
STORED_ENTRY: Final = codec(StoredEntry, npb.StoredEntry)
SCHEMA_VERSION: Final = codec(SchemaVersion, npb.SchemaVersion)
