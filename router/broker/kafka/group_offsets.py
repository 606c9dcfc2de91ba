"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47): the offsets of groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaClient, KafkaRequest
from router.broker.kafka.coordinator import StoredPosition
from router.broker.kafka.failures import REFUSALS, KafkaError, error_code
from router.broker.kafka.group_membership import check_group_id
from router.broker.kafka.group_values import GroupCaller
from router.broker.storage import CommittedPosition, StoreError, TopicRecord
from router.errors import TopicNotFoundError
from router.model import TopicName
from router.wire.kafka.error_codes import ErrorCode

MAX_METADATA_BYTES: Final = 4_096
"""Of one partition's commit, as at Apache Kafka."""
MAX_GROUPS: Final = 1_000
"""Groups of one request; others are not answered."""
MAX_REMEMBERED: Final = 10_000
"""Partitions of groups whose last commit is remembered of a connection."""
_BATCHED_FROM: Final = 8
_EPOCH_FROM: Final = 5
_STABLE_FROM: Final = 7
MEMBERS_FROM: Final = 9
"""The first version that members of consumer groups (KIP-848) use."""
TOPIC_IDS: Final = 10
"""The first version of OffsetCommit and OffsetFetch in which topics have ids instead of names."""
_NO_OFFSET: Final = -1
Check = Callable[[str | bytes], TopicRecord]
"""Returns a topic by its Kafka name, or id; raises one of REFUSALS if nothing is done with it."""
Work = Callable[[KafkaRequest, TopicRecord, str, Any], Awaitable[None]]
"""Serves the request for one partition of a topic; raises one of REFUSALS."""


async def offset_commit(request: KafkaRequest) -> Any:
    """Answer once the offsets are on disk."""
    response = await commit_each(request, _check_commit(request), _commit)
    if not request.body.member_id:
        request.client.part(ResetCommits).record(request, response)
    return response


class ResetCommits:
    """The commits of a client for groups it is no member of: of tools, and consumers on their own.

    What sets an offset for the first time on a connection, or back, is a change of an administrator
    for the audit: tools have a connection for each call, and a consumer that commits as it reads
    only moves on.
    """

    def __init__(self, client: KafkaClient) -> None:
        self._identity = client.identity
        self._last: dict[tuple[str, str, int], int] = {}

    def record(self, request: KafkaRequest, response: Any) -> None:
        """Record what a commit set of each topic."""
        audit, group = request.context.broker.audit, request.body.group_id
        key = _topic_key(request)
        for topic, answered in zip(request.body.topics, response.topics, strict=True):
            if (found := request.context.find_topic(getattr(topic, key))) is None:
                continue
            name = request.context.kafka_name(found)
            reset: dict[str, int] = {}
            for one, result in zip(topic.partitions, answered.partitions, strict=True):
                place = group, name, one.partition_index
                if result.error_code == ErrorCode.NONE:
                    last = self._last.pop(place, None)
                    self._last[place] = one.committed_offset
                    if last is None or one.committed_offset < last:
                        reset[f"partition {one.partition_index}"] = one.committed_offset
            if reset and audit is not None:
                user, address = self._identity.principal.name, self._identity.address
                details = {"group": group, **reset}
                audit.add("reset-group", name, user, address, "kafka", **details)
        while len(self._last) > MAX_REMEMBERED:
            del self._last[next(iter(self._last))]


async def commit_each(request: KafkaRequest, refusal: ErrorCode, work: Work) -> Any:
    """Return the response to a commit, with all that `work` stores on disk; `refusal`: of all."""
    coordinator, group_id = request.context.coordinator, request.body.group_id

    def check(topic: str | bytes) -> TopicRecord:
        if refusal is not ErrorCode.NONE:
            raise KafkaError(refusal)
        record = request.client.topic(topic, Right.SUBSCRIBE)
        name = coordinator.name_on(group_id, request.context.kafka_name(record))
        if coordinator.is_read(record, name):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return record

    topics = await _each_partition(request, check, work)
    await sync_topics(request, topics)
    return request.response(topics=topics)


async def offset_fetch(request: KafkaRequest) -> Any:
    """Answer with the offsets of one group, or of several, once they are on disk."""
    body, coordinator = request.body, request.context.coordinator
    if request.version >= _BATCHED_FROM:
        groups = []
        # All positions of a group cost more than its name, others no more than theirs.
        named = {
            (group.group_id, None if group.topics is None else number): group
            for number, group in enumerate(body.groups[:MAX_GROUPS])
        }
        everything = any(group.topics is None for group in named.values())
        stored = await coordinator.stored_groups() if everything else {}
        for (group_id, _), group in named.items():
            error = check_group_id(group_id) or _check_fetch(request, group)
            places = stored.get(group_id, ())
            topics = [] if error else await _fetch(request, group_id, group.topics, places, "s")
            error = error or await sync_topics(request, topics)
            groups.append(
                request.struct(
                    "OffsetFetchResponseGroup",
                    group_id=group_id,
                    topics=topics,
                    error_code=error,
                )
            )
        return request.response(groups=groups)
    error = check_group_id(body.group_id)
    stored = await coordinator.stored_groups() if body.topics is None else {}
    places = stored.get(body.group_id, ())
    topics = [] if error else await _fetch(request, body.group_id, body.topics, places, "")
    error = error or await sync_topics(request, topics)
    return request.response(topics=topics, error_code=error)


async def offset_delete(request: KafkaRequest) -> Any:
    """Answer once the offsets of partitions that no member reads are forgotten."""
    body, coordinator = request.body, request.context.coordinator
    if body.group_id not in await coordinator.stored_groups():
        return request.response(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    topics_read = coordinator.topics_read(body.group_id)

    def check(topic: str | bytes) -> TopicRecord:
        record = request.client.topic(topic, Right.SUBSCRIBE)
        if record.name in topics_read:
            raise KafkaError(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        return record

    return request.response(topics=await _each_partition(request, check, _delete))


async def sync_topics(request: KafkaRequest, topics: Iterable[Any]) -> ErrorCode:
    """Wait until what the structs of a response say is on disk; if it cannot be, they say that."""
    try:
        await request.context.topics.store.synced()
    except StoreError:
        # The broker ends; the next one has the offsets that are on disk.
        for topic in topics:
            for partition in topic.partitions:
                partition.error_code = partition.error_code or ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE


async def _each_partition(request: KafkaRequest, check: Check, work: Work) -> list[Any]:
    """Return the structs of a response, with the codes of what `check` or `work` refuses."""
    name, key = request.served.api.name, _topic_key(request)
    topics = []
    for topic in request.body.topics:
        record, code = None, ErrorCode.NONE
        try:
            record = check(getattr(topic, key))
        except REFUSALS as failure:
            code = error_code(failure)
        partitions = []
        for requested in topic.partitions:
            result = request.struct(
                f"{name}ResponsePartition",
                partition_index=requested.partition_index,
                error_code=code,
            )
            if record is not None:
                try:
                    await work(request, record, request.context.kafka_name(record), requested)
                except REFUSALS as failure:
                    result.error_code = error_code(failure)
            partitions.append(result)
        topics.append(
            request.struct(
                f"{name}ResponseTopic", **{key: getattr(topic, key)}, partitions=partitions
            )
        )
    return topics


def _topic_key(request: KafkaRequest) -> str:
    """Return the field by which a request and its response know topics."""
    return "topic_id" if request.version >= TOPIC_IDS else "name"


def _check_fetch(request: KafkaRequest, group: Any) -> ErrorCode:
    """Return whether a member of a consumer group is one of its newest epoch."""
    if request.version < MEMBERS_FROM:
        return ErrorCode.NONE
    caller = GroupCaller(group.member_id or "", None, group.member_epoch)
    return request.context.coordinator.check_fetch(group.group_id, caller)


def _check_commit(request: KafkaRequest) -> ErrorCode:
    """Return whether the caller may commit offsets of its group now."""
    body = request.body
    if (error := check_group_id(body.group_id)) is not ErrorCode.NONE:
        return error
    generation = body.generation_id_or_member_epoch
    caller = GroupCaller(body.member_id, body.group_instance_id, generation)
    coordinator = request.context.coordinator
    error = coordinator.check_commit(body.group_id, caller)
    if request.version >= MEMBERS_FROM and error is ErrorCode.ILLEGAL_GENERATION:
        # A member of either protocol joins again, also if its group has no members any more.
        return error if coordinator.find(body.group_id) else ErrorCode.UNKNOWN_MEMBER_ID
    if request.version >= MEMBERS_FROM or error is not ErrorCode.STALE_MEMBER_EPOCH:
        return error
    return ErrorCode.UNSUPPORTED_VERSION


async def _commit(request: KafkaRequest, record: TopicRecord, topic: str, requested: Any) -> None:
    coordinator = request.context.coordinator
    commit = commit_of(request, requested)
    partition = request.context.partition(record, requested.partition_index)
    name = coordinator.name_on(request.body.group_id, topic)
    await coordinator.offsets.commit(partition, name, commit)


def commit_of(request: KafkaRequest, requested: Any) -> CommittedPosition:
    """Return the position that is requested of a partition; raise KafkaError if it is none."""
    metadata: str = requested.committed_metadata or ""
    if len(metadata.encode("utf-8", "surrogatepass")) > MAX_METADATA_BYTES:
        raise KafkaError(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    if requested.committed_offset < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    epoch, now_ms = requested.committed_leader_epoch, request.context.topics.now_ms()
    return CommittedPosition(requested.committed_offset, epoch, metadata, now_ms)


async def _fetch(
    request: KafkaRequest,
    group_id: str,
    requested: Any,
    places: Iterable[StoredPosition],
    plural: str,
) -> list[Any]:
    """Return the structs of topics: those requested, None: all with an offset, at `places`."""
    key, context = _topic_key(request), request.context
    pairs: list[tuple[str | bytes, Sequence[int]]]
    if requested is None:
        stored: dict[str | bytes, list[int]] = {}
        for one in places:
            if request.client.may(TopicName.parse(one.record.name), Right.SUBSCRIBE):
                topic = one.topic if key == "name" else context.topic_id(one.record)
                stored.setdefault(topic, []).append(one.number)
        pairs = list(stored.items())
    else:
        pairs = [(getattr(topic, key), topic.partition_indexes) for topic in requested]
    topics = []
    for topic, numbers in pairs:
        partitions = [
            request.struct(
                f"OffsetFetchResponsePartition{plural}",
                **await _offset(request, group_id, topic, number),
            )
            for number in numbers
        ]
        if requested is None:
            partitions = [one for one in partitions if one.committed_offset != _NO_OFFSET]
        if partitions or requested is not None:
            topics.append(
                request.struct(
                    f"OffsetFetchResponseTopic{plural}", **{key: topic}, partitions=partitions
                )
            )
    return topics


async def _offset(
    request: KafkaRequest, group_id: str, topic: str | bytes, number: int
) -> dict[str, Any]:
    coordinator = request.context.coordinator
    answer: dict[str, Any] = {
        "partition_index": number,
        "committed_offset": _NO_OFFSET,
        "metadata": "",
        "error_code": ErrorCode.NONE,
    }
    try:
        record = request.client.topic(topic, Right.SUBSCRIBE)
        partition = request.context.partition(record, number)
        name = coordinator.name_on(group_id, request.context.kafka_name(record))
        transactions = request.context.producers.transactions
        stable = request.version >= _STABLE_FROM and request.body.require_stable
        if stable and transactions.awaits_position(partition.ledger, name):
            raise KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        found = await coordinator.offsets.position(partition, name)
    except REFUSALS as failure:
        # A partition that is not there has no offset, as at Apache Kafka.
        if not isinstance(failure, TopicNotFoundError):
            answer["error_code"] = error_code(failure)
        return answer
    if found is not None:
        answer |= {"committed_offset": found.number, "metadata": found.metadata}
        if request.version >= _EPOCH_FROM:
            answer["committed_leader_epoch"] = found.leader_epoch
    return answer


async def _delete(request: KafkaRequest, record: TopicRecord, topic: str, requested: Any) -> None:
    coordinator = request.context.coordinator
    partition = request.context.partition(record, requested.partition_index)
    name = coordinator.name_on(request.body.group_id, topic)
    if coordinator.is_read(record, name):
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    await coordinator.offsets.delete(partition, name)


OFFSET_COMMIT: Final = KafkaApi(8, "OffsetCommit", (2, 10), offset_commit)
OFFSET_FETCH: Final = KafkaApi(9, "OffsetFetch", (1, 10), offset_fetch)
OFFSET_DELETE: Final = KafkaApi(47, "OffsetDelete", (0, 0), offset_delete)
