"""Values of the model pass through messages of the node protocol unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.model import (
    GroupMembers,
    Member,
    PartitionLease,
    PartitionStats,
    Position,
    Schema,
    SchemaType,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.model.administration import (
    ClientInfo,
    CursorDescription,
    EntryRange,
    Namespace,
    NamespacePolicies,
    SchemaVersion,
    Tenant,
)
from router.model.policies import Policies
from router.sharing.registry import RegistryRecord
from router.wire import node
from router.wire.node import conversions
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import ProtocolError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAME = st.from_regex(r"[a-z]{1,9}", fullmatch=True)
SMALL = st.integers(0, 2**31 - 1)
LARGE = st.integers(0, 2**62)
MAYBE = st.none() | LARGE
POLICIES = st.builds(Policies, MAYBE, MAYBE, MAYBE, st.none() | st.booleans(), replicas=st.none())
INFO = st.builds(
    TopicInfo,
    st.builds(TopicName, NAME, NAME, NAME),
    SMALL,
    POLICIES,
    st.dictionaries(TEXT, TEXT, max_size=3),
    LARGE,
)
PARTITION = st.builds(PartitionStats, SMALL, LARGE, LARGE, LARGE, LARGE, LARGE, SMALL)
GROUP = st.builds(SubscriptionStats, TEXT, SMALL, LARGE, SMALL, st.booleans())
PROPERTIES = st.dictionaries(TEXT, TEXT, max_size=3)
SCHEMA = st.builds(
    Schema, st.sampled_from([SchemaType.JSON, SchemaType.STRING]), st.binary(), PROPERTIES, TEXT
)
MEMBER = st.builds(Member, TEXT, TEXT, SMALL, MAYBE, MAYBE)
LEASE = st.builds(PartitionLease, SMALL, TEXT, st.none() | TEXT, st.lists(TEXT).map(tuple))
CASES: list[tuple[conversions.MessageCodec[Any, Any], st.SearchStrategy[Any]]] = [
    (conversions.RECORD, st.builds(RegistryRecord, TEXT, st.binary(max_size=9), LARGE)),
    (
        conversions.MEMBERS,
        st.builds(
            GroupMembers,
            st.lists(MEMBER, max_size=3).map(tuple),
            st.lists(LEASE, max_size=3).map(tuple),
            st.booleans(),
            st.none() | TEXT,
        ),
    ),
    (
        conversions.TOPIC_STATS,
        st.builds(
            TopicStats,
            INFO,
            st.lists(PARTITION, max_size=3).map(tuple),
            st.lists(GROUP, max_size=3).map(tuple),
        ),
    ),
    (
        conversions.NAMESPACE,
        st.builds(
            Namespace,
            NAME,
            LARGE,
            st.builds(NamespacePolicies, MAYBE, auto_create=st.none() | st.booleans()),
        ),
    ),
    (conversions.TENANT, st.builds(Tenant, NAME, st.lists(TEXT, max_size=3).map(tuple))),
    (conversions.CLIENT, st.builds(ClientInfo, SMALL, TEXT, LARGE, LARGE, PROPERTIES)),
    (
        conversions.CURSOR,
        st.builds(
            CursorDescription,
            *(SMALL, TEXT, LARGE, st.integers(-1, 2**62)),
            st.lists(st.builds(EntryRange, LARGE, LARGE), max_size=3).map(tuple),
            type=st.none() | NAME,
            properties=PROPERTIES,
        ),
    ),
    (conversions.SCHEMA_VERSION, st.builds(SchemaVersion, LARGE, SCHEMA, LARGE)),
]


@given(data=st.data(), case=st.sampled_from(CASES))
def test_values_come_back_as_they_were(
    data: st.DataObject, case: tuple[conversions.MessageCodec[Any, Any], st.SearchStrategy[Any]]
) -> None:
    codec, strategy = case
    value = data.draw(strategy)
    message = codec.encode(value)
    assert codec.decode(type(message).FromString(message.SerializeToString())) == value


@given(position=st.builds(Position, LARGE, LARGE, SMALL, SMALL, SMALL, LARGE))
def test_positions_come_back_as_they_were(position: Position) -> None:
    assert conversions.from_message_id(conversions.to_message_id(position)) == position


def test_a_dataclass_with_a_field_that_the_message_lacks_has_no_codec() -> None:
    @dataclass
    class Other:
        absent: int

    with pytest.raises(TypeError, match="has no field absent"):
        conversions.MessageCodec(Other, npb.RegistryRef)
    conversions.MessageCodec(Other, npb.RegistryRef, "absent")


@pytest.mark.parametrize("content", [b"\x0a\x00", b"\xff", b"\x0a\x05\x08\x01\x6a\x01\xff"])
def test_content_that_is_no_command_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        node.read(content)


def test_fields_are_counted_unless_the_peer_is_trusted() -> None:
    listed = npb.CommandAdminResponse(request_id=1, tenants=[npb.Tenant(name="")] * 60_000)
    content = node.NodeCommand(admin_response=listed).SerializeToString()
    with pytest.raises(ProtocolError, match="fields"):
        node.read(content)
    assert len(node.read(content, trusted=True).admin_response.tenants) == 60_000
