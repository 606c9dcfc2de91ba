"""Requests of administration on the connection that messages take, which our own broker answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from router.errors import from_code
from router.model import TopicName, TopicStats
from router.pulsar_client.link import Make, PulsarLink
from router.pulsar_client.refusals import refusal
from router.wire import node
from router.wire.node import conversions
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb


def ask(link: PulsarLink, command: npb.CommandAdmin, deadline: float, *, again: bool = True) -> Any:
    """Send an administration command and return the answer; raise the failure that it names."""

    def make(request_id: int) -> pb.BaseCommand:
        command.request_id = request_id
        return node.extension(admin=command)

    answer = link.call(make, deadline, again=again)
    if answer.HasField("code"):
        raise from_code(answer.code, answer.message)
    return answer


def partition_count(call: Callable[[Make], Any], topic: TopicName, *, create: bool = False) -> int:
    """Return the number of partitions, 0: not partitioned; raise TopicNotFoundError.

    `call` makes a request of its id and returns the answer. With `create`, a missing topic is one
    that would be made by its first use.
    """

    def make(request_id: int) -> pb.BaseCommand:
        command = pb.CommandPartitionedTopicMetadata(
            topic=str(topic), request_id=request_id, metadata_auto_creation_enabled=create
        )
        kind = pb.BaseCommand.PARTITIONED_METADATA
        return pb.BaseCommand(type=kind, partitionMetadata=command)

    answer = call(make)
    if answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
        raise refusal(answer.error, answer.message)
    partitions: int = answer.partitions
    return partitions


def listed(
    answer: Callable[[Any], Any], request: Any, field: str, turn: Callable[[Any, Any], None]
) -> Iterator[Any]:
    """Yield what a field of the answers lists; `turn` makes a request that of the next page."""
    more = True
    while more:
        page = answer(request)
        yield from getattr(page, field)
        if more := page.more:
            turn(request, getattr(page, field))


def after(field: str) -> Callable[[Any, Any], None]:
    """Return what has a request name the last entry of a page, by this field of it."""

    def turn(request: Any, page: Any) -> None:
        request.after = getattr(page[-1], field)

    return turn


def after_cursor(request: Any, page: Any) -> None:
    """Have a request name the last cursor of a page."""
    request.after_partition, request.after_subscription = page[-1].partition, page[-1].subscription


def described(answer: Callable[[npb.TopicRef], Any], topic: TopicName) -> TopicStats:
    """Return what a topic holds, from the pages that `answer` returns for requests.

    Raises TopicNotFoundError, and what `answer` raises.
    """
    request = npb.TopicRef(topic=str(topic))
    page = answer(request)
    stats = conversions.TOPIC_STATS.decode(page.stats)
    found = [*stats.subscriptions]
    while page.more:
        request.after_partition, request.after_subscription = found[-1].partition, found[-1].name
        page = answer(request)
        found += map(conversions.SUBSCRIPTION_STATS.decode, page.stats.subscriptions)
    return replace(stats, subscriptions=tuple(found))
