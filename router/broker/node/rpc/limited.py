"""What clients that do not administer the node may ask of it: what reading and publishing need.

A program that reads topics in bulk, such as Spark, asks where their entries are, and which topics
match a pattern. Clients may know the first of topics to which they may subscribe, and the names
and partitions of topics that they may see. Who may publish to a topic may have it made as its first
use would make it. All other requests are for administrators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from router.access.permissions import Right
from router.broker.topics.names import MAX_PARTITIONS
from router.errors import ForbiddenError, NotAllowedError
from router.model.policies import Policies
from router.wire.node import conversions
from router.wire.node import node_pb2 as npb

MAX_TOPICS: Final = 1_000
"""Whose entries one request may ask for: each name is looked at before anything is answered."""
REFUSAL: Final = "administration is served on the node's socket and to administrators"


class ClientRights(Protocol):
    """What a client may do with topics, by their full names."""

    def authorize(self, topic: str, right: Right) -> None:
        """Raise ForbiddenError unless the client has the right, BadNameError for no name."""
        ...

    def visible(self, names: list[str]) -> list[str]:
        """Return those that the client may see."""
        ...


Creation = Callable[[str], int | None]
"""Returns how many partitions a topic would get by being used, None: it would not be made."""


def authorize_request(rights: ClientRights, command: npb.CommandAdmin, creation: Creation) -> None:
    """Return if a client that does not administer the node may make a request.

    Raises NotAllowedError, BadNameError, and what `creation` raises.
    """
    body = command.WhichOneof("body")
    try:
        if body == "locate_messages":
            _check_size(command.locate_messages)
            for one in command.locate_messages.topics:
                rights.authorize(one.topic, Right.SUBSCRIBE)
        elif body == "create_topic":
            rights.authorize(command.create_topic.topic, Right.PUBLISH)
            _check_creation(command.create_topic, creation)
        elif body != "list_topics" and not (body == "call" and command.call.name == "history"):
            raise NotAllowedError(REFUSAL)
    except ForbiddenError as error:
        raise NotAllowedError(str(error)) from error


def _check_size(command: npb.LocateMessages) -> None:
    """Raise NotAllowedError for more topics, or ranges of one, than one request may name."""
    most = max((len(one.ranges) for one in command.topics[:MAX_TOPICS]), default=0)
    if len(command.topics) > MAX_TOPICS or most > MAX_PARTITIONS:
        raise NotAllowedError(
            f"a request names at most {MAX_TOPICS} topics, and {MAX_PARTITIONS} ranges of each"
        )


def _check_creation(command: npb.CreateTopic, creation: Creation) -> None:
    """Raise NotAllowedError for a topic that its first use would not make so."""
    partitions = creation(command.topic)
    if partitions is None:
        raise NotAllowedError(f"only administrators may create the topic {command.topic} here")
    if partitions != command.partitions:
        raise NotAllowedError(
            f"only administrators may create the topic {command.topic} with {command.partitions}"
            f" partitions: others get what its first use makes, {partitions} (the setting"
            " topics.auto_partitions)"
        )
    if command.policies != conversions.POLICIES.encode(Policies()) or command.properties:
        raise NotAllowedError("only administrators may give a topic policies or properties")


async def limited_answer(
    rights: ClientRights,
    command: npb.CommandAdmin,
    answer: Callable[[npb.CommandAdmin], Awaitable[npb.CommandAdminResponse]],
) -> npb.CommandAdminResponse:
    """Return what `answer` returns, of lists of topics what the client may see of them.

    A page that has nothing for the client is passed over, since the last topic of a page says where
    the next one begins.
    """
    while True:
        response = await answer(command)
        listed = [(one.topic, one.partitions) for one in response.topics]
        if not listed:
            return response
        seen = frozenset(rights.visible([name for name, _ in listed]))
        del response.topics[:]
        for name, partitions in listed:
            if name in seen:
                response.topics.add(topic=name, partitions=partitions)
        if response.topics or not response.more:
            return response
        command.list_topics.after = listed[-1][0]
        # Topics are listed from memory, so nothing above suspends.
        await asyncio.sleep(0)
