"""What clients that do not administer the node may ask of it, and what they are refused."""

from __future__ import annotations

import asyncio

import pytest

from router.access.permissions import Right
from router.broker.node.rpc.limited import (
    MAX_TOPICS,
    REFUSAL,
    authorize_request,
    limited_answer,
)
from router.broker.topics.names import MAX_PARTITIONS
from router.errors import ForbiddenError, NotAllowedError
from router.model.policies import Policies
from router.wire.node import conversions
from router.wire.node import node_pb2 as npb


class Rights:
    """A client with one right on topics that begin with `o`."""

    def __init__(self, right: Right) -> None:
        self.right = right

    def authorize(self, topic: str, right: Right) -> None:
        if right is not self.right or not topic.startswith("o"):
            raise ForbiddenError(f"no right to {right.value} {topic}")

    def visible(self, names: list[str]) -> list[str]:
        return [name for name in names if name.startswith("o")]


READER, WRITER = Rights(Right.SUBSCRIBE), Rights(Right.PUBLISH)


def two(topic: str) -> int | None:
    return None if topic == "o-never" else 2


def located(*topics: str) -> npb.CommandAdmin:
    asked = npb.LocateMessages(topics=[npb.TopicRanges(topic=topic) for topic in topics])
    return npb.CommandAdmin(locate_messages=asked)


def created(topic: str, partitions: int, policies: Policies) -> npb.CommandAdmin:
    encoded = conversions.POLICIES.encode(policies)
    asked = npb.CreateTopic(topic=topic, partitions=partitions, policies=encoded)
    return npb.CommandAdmin(create_topic=asked)


def test_every_request_but_those_of_readers_and_publishers_is_refused() -> None:
    allowed = {"locate_messages", "create_topic", "list_topics"}
    for field in npb.CommandAdmin.DESCRIPTOR.oneofs_by_name["body"].fields:
        if field.name in allowed:
            continue
        command = npb.CommandAdmin()
        if field.message_type is None:
            setattr(command, field.name, "o" if field.type == field.TYPE_STRING else 1)
        else:
            getattr(command, field.name).SetInParent()
        for rights in (READER, WRITER):
            with pytest.raises(NotAllowedError, match=REFUSAL):
                authorize_request(rights, command, two)
    with pytest.raises(NotAllowedError, match=REFUSAL):
        authorize_request(READER, npb.CommandAdmin(), two)
    history = npb.AdminCall(name="history", arguments=b"{}")
    authorize_request(READER, npb.CommandAdmin(call=history), two)


def test_who_may_subscribe_to_all_topics_of_a_question_may_know_where_their_entries_are() -> None:
    authorize_request(READER, located("o1", "o2"), two)
    with pytest.raises(NotAllowedError, match="no right to subscribe p"):
        authorize_request(READER, located("o1", "p"), two)
    with pytest.raises(NotAllowedError, match="no right to subscribe o1"):
        authorize_request(WRITER, located("o1"), two)


def test_a_question_is_no_larger_than_what_is_looked_at_in_one_step() -> None:
    """Names and ranges are cheap to send: a frame has room for 200,000 and more."""
    most = located(*["o"] * MAX_TOPICS)
    for _ in range(MAX_PARTITIONS):
        most.locate_messages.topics[0].ranges.add()
    authorize_request(READER, most, two)
    most.locate_messages.topics[0].ranges.add()
    for command in (most, located(*["o"] * (MAX_TOPICS + 1))):
        with pytest.raises(NotAllowedError, match="at most 1000 topics, and 1000 ranges of each"):
            authorize_request(READER, command, two)


@pytest.mark.parametrize(
    ("rights", "topic", "partitions", "policies", "refused"),
    [
        (WRITER, "o", 2, Policies(), ""),
        (READER, "o", 2, Policies(), "no right to publish o"),
        (WRITER, "p", 2, Policies(), "no right to publish p"),
        (WRITER, "o", 3, Policies(), r"with 3 partitions: .* makes, 2 \(the setting topics\.auto"),
        (WRITER, "o-never", 2, Policies(), "only administrators may create the topic o-never"),
        (WRITER, "o", 2, Policies(ttl_seconds=1), "policies or properties"),
    ],
)
def test_who_may_publish_has_topics_made_as_their_first_use_makes_them(
    rights: Rights, topic: str, partitions: int, policies: Policies, refused: str
) -> None:
    command = created(topic, partitions, policies)
    if not refused:
        authorize_request(rights, command, two)
        return
    with pytest.raises(NotAllowedError, match=refused):
        authorize_request(rights, command, two)


def test_properties_of_a_topic_are_for_administrators() -> None:
    command = created("o", 2, Policies())
    command.create_topic.properties.add(key="owner", value="anna")
    with pytest.raises(NotAllowedError, match="policies or properties"):
        authorize_request(WRITER, command, two)


@pytest.mark.parametrize("text", ["", "o1", "p1 p2 p3", "o1 p1 p2 p3 o2", "n1 n2 o1 o2 p1"])
def test_pages_of_topics_have_the_names_that_the_client_may_see(text: str) -> None:
    names = sorted(text.split())

    async def answer(command: npb.CommandAdmin) -> npb.CommandAdminResponse:
        left = [name for name in names if name > command.list_topics.after]
        response = npb.CommandAdminResponse(request_id=1, more=len(left) > 2)
        for name in left[:2]:
            topic = response.topics.add(topic=name, partitions=3)
            topic.properties.add(key="owner", value="ben")
        return response

    found, more = [""], True
    while more:
        command = npb.CommandAdmin(list_topics=npb.ListTopics(after=found[-1]))
        page = asyncio.run(limited_answer(READER, command, answer))
        assert all(one.partitions == 3 and not one.properties for one in page.topics)
        found += [one.topic for one in page.topics]
        more = page.more
        assert page.topics or not more
    assert found[1:] == [name for name in names if name.startswith("o")]
