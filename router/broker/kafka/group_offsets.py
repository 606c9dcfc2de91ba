"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47): the offsets of groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from router.access.permissions import Right
from router.broker.consume import Partition
from router.broker.kafka.client import KafkaApi, KafkaClient, KafkaRequest
from router.broker.kafka.coordinator import StoredPosition
from router.broker.kafka.failures import REFUSALS, KafkaError, error_code
from router.broker.kafka.group_membership import check_group_id
from router.broker.kafka.group_values import GroupCaller
from router.broker.storage import CommittedPosition, StoreError, TopicRecord
from router.broker.topics.steps import in_steps, side_by_side, steps_of
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


@dataclass(slots=True, eq=False)
class PartitionPart:
    """What a request wants of one partition of a topic, and the struct that answers it."""

    request: KafkaRequest
    record: TopicRecord
    requested: Any
    result: Any

    @property
    def group_name(self) -> str:
        """The name of the request's group on the topic."""
        topic = self.request.context.kafka_name(self.record)
        return self.request.context.coordinator.name_on(self.request.body.group_id, topic)

    def partition(self) -> Partition:
        """Return the partition; raise TopicNotFoundError."""
        return self.request.context.partition(self.record, self.requested.partition_index)

    async def attempt(self, work: PartitionWork) -> None:
        """Do the work; the result has the code of what it refuses."""
        try:
            await work(self)
        except REFUSALS as failure:
            self.result.error_code = error_code(failure)


PartitionWork = Callable[[PartitionPart], Awaitable[None]]
"""Does what is requested of one partition; raises one of REFUSALS."""


async def offset_commit(request: KafkaRequest) -> Any:
    """Answer once the offsets are on disk."""
    topics = await commit_each(request, lambda: _check_commit(request), _commit)
    await sync_topics(request, topics)
    response = request.response(topics=topics)
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


async def commit_each(
    request: KafkaRequest, refusal: Callable[[], ErrorCode], work: PartitionWork
) -> list[Any]:
    """Return the structs of the response to a commit; `refusal`: of all that is left.

    What was refused a cursor is refused: `work` is not done, though another try might succeed.
    """
    coordinator, group_id = request.context.coordinator, request.body.group_id

    def check(topic: str | bytes) -> TopicRecord:
        if (code := refusal()) is not ErrorCode.NONE:
            raise KafkaError(code)
        record = request.client.topic(topic, Right.SUBSCRIBE)
        name = coordinator.name_on(group_id, request.context.kafka_name(record))
        if coordinator.is_read(record, name):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return record

    async def serve(parts: Sequence[PartitionPart]) -> None:
        # Cursors that are missing are made side by side; positions are set in order.
        await side_by_side(part.attempt(_make_cursor) for part in parts if _lacks_cursor(part))
        for part in parts:
            if part.result.error_code == ErrorCode.NONE:
                await part.attempt(work)

    return await _each_partition(request, check, serve)


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

    def check(topic: str | bytes) -> TopicRecord:
        record = request.client.topic(topic, Right.SUBSCRIBE)
        if record.name in coordinator.topics_read(body.group_id):
            raise KafkaError(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        name = coordinator.name_on(body.group_id, request.context.kafka_name(record))
        if coordinator.is_read(record, name):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        return record

    async def serve(parts: Sequence[PartitionPart]) -> None:
        await side_by_side(part.attempt(_delete) for part in parts)

    return request.response(topics=await _each_partition(request, check, serve))


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


async def _each_partition(
    request: KafkaRequest,
    check: Check,
    serve: Callable[[Sequence[PartitionPart]], Awaitable[None]],
) -> list[Any]:
    """Return the structs of a response, with the codes of what `check` or `serve` refuses.

    Of very many partitions some are served at a time, and their topics checked just before.
    """
    name, key = request.served.api.name, _topic_key(request)
    answers: list[tuple[Any, list[Any]]] = [(topic, []) for topic in request.body.topics]
    requested = ((topic, found, one) for topic, found in answers for one in topic.partitions)
    async for step in steps_of(requested):
        checked: dict[str | bytes, TopicRecord | ErrorCode] = {}
        parts = []
        for topic, found, one in step:
            topic_key = getattr(topic, key)
            if topic_key not in checked:
                checked[topic_key] = _checked(check, topic_key)
            result = request.struct(f"{name}ResponsePartition", partition_index=one.partition_index)
            found.append(result)
            if isinstance(outcome := checked[topic_key], TopicRecord):
                parts.append(PartitionPart(request, outcome, one, result))
            else:
                result.error_code = outcome
        await serve(parts)
    return [
        request.struct(f"{name}ResponseTopic", **{key: getattr(topic, key)}, partitions=found)
        for topic, found in answers
    ]


def _checked(check: Check, topic: str | bytes) -> TopicRecord | ErrorCode:
    try:
        return check(topic)
    except REFUSALS as failure:
        return error_code(failure)


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


def _lacks_cursor(part: PartitionPart) -> bool:
    """Return whether a commit that nothing refuses yet is the first of its group."""
    try:
        commit_of(part.request, part.requested)
        return part.group_name not in part.partition().subscriptions
    except REFUSALS:
        return False  # the commit meets it again


async def _make_cursor(part: PartitionPart) -> None:
    offsets = part.request.context.coordinator.offsets
    await offsets.open(part.partition(), part.group_name)


async def _commit(part: PartitionPart) -> None:
    commit = commit_of(part.request, part.requested)
    offsets = part.request.context.coordinator.offsets
    await offsets.commit(part.partition(), part.group_name, commit)


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
        async for one in in_steps(places):
            if request.client.may(TopicName.parse(one.record.name), Right.SUBSCRIBE):
                topic = one.topic if key == "name" else context.topic_id(one.record)
                stored.setdefault(topic, []).append(one.number)
        pairs = list(stored.items())
    else:
        pairs = [(getattr(topic, key), topic.partition_indexes) for topic in requested]
    answers: list[list[Any]] = [[] for _ in pairs]
    parts = (
        (topic, number, found)
        for (topic, numbers), found in zip(pairs, answers, strict=True)
        for number in numbers
    )
    async for topic, number, found in in_steps(parts):
        answer = await _offset(request, group_id, topic, number)
        if requested is not None or answer["committed_offset"] != _NO_OFFSET:
            found.append(request.struct(f"OffsetFetchResponsePartition{plural}", **answer))
    return [
        request.struct(f"OffsetFetchResponseTopic{plural}", **{key: topic}, partitions=found)
        for (topic, _), found in zip(pairs, answers, strict=True)
        if found or requested is not None
    ]


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


async def _delete(part: PartitionPart) -> None:
    offsets = part.request.context.coordinator.offsets
    await offsets.delete(part.partition(), part.group_name)


OFFSET_COMMIT: Final = KafkaApi(8, "OffsetCommit", (2, 10), offset_commit)
OFFSET_FETCH: Final = KafkaApi(9, "OffsetFetch", (1, 10), offset_fetch)
OFFSET_DELETE: Final = KafkaApi(47, "OffsetDelete", (0, 0), offset_delete)
