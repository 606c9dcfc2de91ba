"""ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69): groups of the protocol of KIP-848."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.assignors import ASSIGNORS, Assignment
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.consumer_group import ConsumerGroup
from router.broker.kafka.consumer_group_values import (
    AWAY,
    JOINING,
    ConsumerMember,
    Heartbeat,
    HeartbeatResult,
)
from router.broker.kafka.failures import KafkaError
from router.broker.kafka.group_membership import (
    MAX_CLIENT_ID_CHARACTERS,
    MAX_INSTANCE_ID_CHARACTERS,
    refusal_of,
    wait,
)
from router.model import TopicName
from router.wire.kafka.error_codes import ErrorCode

MAX_MEMBER_ID_CHARACTERS: Final = 1_000
MAX_REBALANCE_SECONDS: Final = 86_400.0
CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
"""The type of a member in what is described."""


def consumer_group_heartbeat(request: KafkaRequest) -> Any:
    """Answer with the member's epoch, and its partitions if they changed, once that is on disk."""
    body = request.body
    try:
        _check(request)
        beat = _heartbeat(request)
    except KafkaError as refusal:
        failed = HeartbeatResult(refusal.code, message=str(refusal) or None)
        return _heartbeat_response(request, failed)
    coordinator = request.context.coordinator
    wait(
        request,
        lambda waiter: coordinator.beat(body.group_id, beat, waiter),
        _heartbeat_response,
    )
    return None


def consumer_group_describe(request: KafkaRequest) -> Any:
    """Answer with the states, members and assignments of groups of this protocol."""
    return request.response(
        groups=[_described(request, group_id) for group_id in dict.fromkeys(request.body.group_ids)]
    )


def _check(request: KafkaRequest) -> None:
    """Raise KafkaError for a heartbeat that no client sends, or that the client may not send."""
    body = request.body
    if (error := refusal_of(request, body.instance_id)) is not ErrorCode.NONE:
        raise KafkaError(error)
    joins = body.member_epoch == JOINING
    subscribes = body.subscribed_topic_names is not None or bool(body.subscribed_topic_regex)
    refused = {
        "MemberId has to be given": not 1 <= len(body.member_id) <= MAX_MEMBER_ID_CHARACTERS,
        f"MemberEpoch is less than {AWAY}": body.member_epoch < AWAY,
        "InstanceId has to be given by a static member that leaves": (
            body.member_epoch == AWAY and body.instance_id is None
        ),
        "RebalanceTimeoutMs has to be given by a member that joins": (
            joins and body.rebalance_timeout_ms < 0
        ),
        "TopicPartitions has to be empty of a member that joins": (
            joins and (body.topic_partitions is None or bool(body.topic_partitions))
        ),
        "SubscribedTopicNames or SubscribedTopicRegex has to be given by a member that joins": (
            joins and not subscribes
        ),
        "RackId is too long": len(body.rack_id or "") > MAX_INSTANCE_ID_CHARACTERS,
    }
    for sentence, is_refused in refused.items():
        if is_refused:
            raise KafkaError(ErrorCode.INVALID_REQUEST, sentence)
    if body.server_assignor is not None and body.server_assignor not in ASSIGNORS:
        names = ", ".join(ASSIGNORS)
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"ServerAssignor is one of {names}")
    if body.subscribed_topic_regex:
        request.context.coordinator.catalog.matching(body.subscribed_topic_regex)
    if request.client.is_unrestricted:
        return
    for name in body.subscribed_topic_names or ():
        record = request.context.topics.find_kafka(name)
        if record is not None and not _may_read(request, record.name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _heartbeat(request: KafkaRequest) -> Heartbeat:
    body = request.body
    coordinator, group_id = request.context.coordinator, body.group_id

    def match(pattern: str) -> frozenset[str]:
        return frozenset(
            name
            for name, record in coordinator.catalog.matching(pattern).items()
            if _may_read(request, record.name) and coordinator.may_join(group_id, record, name)
        )

    names, owned = body.subscribed_topic_names, body.topic_partitions
    timeout = min(body.rebalance_timeout_ms / 1000, MAX_REBALANCE_SECONDS)
    return Heartbeat(
        member_id=body.member_id,
        epoch=body.member_epoch,
        client_id=request.client_id[:MAX_CLIENT_ID_CHARACTERS],
        client_host=request.client.connection.peer.address,
        match=match,
        rights=request.client.rights_version,
        owner=request.client.owner_name or "",
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_seconds=timeout if timeout >= 0 else None,
        names=None if names is None else frozenset(names),
        pattern=body.subscribed_topic_regex,
        assignor=body.server_assignor,
        owned=None
        if owned is None
        else frozenset((one.topic_id, number) for one in owned for number in one.partitions),
    )


def _may_read(request: KafkaRequest, topic: str) -> bool:
    return request.client.may(TopicName.parse(topic), Right.SUBSCRIBE)


def _heartbeat_response(request: KafkaRequest, result: Any) -> Any:
    assignment = None
    if result.assignment is not None:
        topics = [
            request.struct("TopicPartitions", topic_id=topic, partitions=numbers)
            for topic, numbers in _by_topic(result.assignment)
        ]
        assignment = request.struct("Assignment", topic_partitions=topics)
    interval = request.context.coordinator.heartbeat_seconds if not result.error else 0
    return request.response(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=int(interval * 1000),
        assignment=assignment,
    )


def _described(request: KafkaRequest, group_id: str) -> Any:
    coordinator = request.context.coordinator
    group = coordinator.find(group_id)
    fields: dict[str, Any] = {"group_id": group_id, "group_state": "", "assignor_name": ""}
    if not request.client.may_read_group(group_id, coordinator.topics_read(group_id)):
        return request.struct(
            "DescribedGroup", **fields, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
        )
    if not isinstance(group, ConsumerGroup):
        why = "not found" if group is None else "not a consumer group"
        sentence = f"Group {group_id} {why if group is None else 'is ' + why}."
        return request.struct(
            "DescribedGroup",
            **fields,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=sentence,
        )
    return request.struct(
        "DescribedGroup",
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=[_member(request, one) for one in group.members.values()],
    )


def _member(request: KafkaRequest, member: ConsumerMember) -> Any:
    return request.struct(
        "Member",
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=f"/{member.client_host}",
        subscribed_topic_names=sorted(member.names),
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(request, member.assigned),
        target_assignment=_assignment(request, member.target),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(request: KafkaRequest, assignment: Assignment) -> Any:
    """Return the struct of an assignment without the topics that were deleted meanwhile."""
    context = request.context
    found = [
        (context.find_topic(topic), topic, numbers) for topic, numbers in _by_topic(assignment)
    ]
    topics = [
        request.struct(
            "TopicPartitions",
            topic_id=topic,
            topic_name=context.topics.kafka_names.of(TopicName.parse(record.name)),
            partitions=numbers,
        )
        for record, topic, numbers in found
        if record is not None
    ]
    return request.struct("Assignment", topic_partitions=topics)


def _by_topic(assignment: Assignment) -> Iterable[tuple[bytes, list[int]]]:
    found: dict[bytes, list[int]] = {}
    for topic, number in sorted(assignment):
        found.setdefault(topic, []).append(number)
    return found.items()


CONSUMER_GROUP_HEARTBEAT: Final = KafkaApi(
    68, "ConsumerGroupHeartbeat", (0, 1), consumer_group_heartbeat
)
CONSUMER_GROUP_DESCRIBE: Final = KafkaApi(
    69, "ConsumerGroupDescribe", (0, 1), consumer_group_describe
)
