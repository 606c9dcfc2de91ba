"""JoinGroup (11), SyncGroup (14), Heartbeat (12), LeaveGroup (13): being a member of a group.

A join or sync that waits is a callback of its group; it costs no task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.consumer_metadata import topics_of
from router.broker.kafka.group_values import (
    GroupCaller,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from router.broker.kafka.held_groups import Result, Waiter
from router.model import TopicName
from router.wire.kafka.error_codes import ErrorCode

MAX_GROUP_ID_CHARACTERS: Final = 1_000
MAX_INSTANCE_ID_CHARACTERS: Final = 1_000
MAX_CLIENT_ID_CHARACTERS: Final = 200
"""Kept of a client id, with which a member's id begins."""
MAX_PROTOCOLS: Final = 100
_ID_REQUIRED_FROM: Final = 4
_NULL_PROTOCOL_FROM: Final = 7
_MAY_SKIP_FROM: Final = 9
_BATCHED_FROM: Final = 3


def join_group(request: KafkaRequest) -> Any:
    """Answer once the next generation of the group has begun."""
    body, version = request.body, request.version
    refusal = refusal_of(request, body.group_instance_id)
    if len(body.protocols) > MAX_PROTOCOLS:
        refusal = ErrorCode.INVALID_REQUEST
    rebalance_ms = body.rebalance_timeout_ms if version else body.session_timeout_ms
    joining = JoinRequest(
        member_id=body.member_id,
        instance_id=body.group_instance_id,
        client_id=request.client_id[:MAX_CLIENT_ID_CHARACTERS],
        client_host=request.client.connection.peer.address,
        session_seconds=body.session_timeout_ms / 1000,
        rebalance_seconds=rebalance_ms / 1000,
        protocol_type=body.protocol_type,
        protocols=tuple((one.name, bytes(one.metadata)) for one in body.protocols),
        id_required=version >= _ID_REQUIRED_FROM,
        may_skip_assignment=version >= _MAY_SKIP_FROM,
        owner=request.client.owner_name or "",
    )
    if refusal is ErrorCode.NONE and not _may_read(request, topics_of(joining)):
        refusal = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if refusal is not ErrorCode.NONE:
        return _join_response(request, JoinResult(refusal, body.member_id))
    coordinator = request.context.coordinator
    wait(request, lambda waiter: coordinator.join(body.group_id, joining, waiter), _join_response)
    return None


def sync_group(request: KafkaRequest) -> Any:
    """Answer with the member's assignment once the leader has brought it."""
    body = request.body
    refusal = refusal_of(request, body.group_instance_id)
    if refusal is not ErrorCode.NONE:
        return _sync_response(request, SyncResult(refusal))
    syncing = SyncRequest(
        GroupCaller(body.member_id, body.group_instance_id, body.generation_id),
        body.protocol_type,
        body.protocol_name,
        {one.member_id: bytes(one.assignment) for one in body.assignments},
    )
    coordinator = request.context.coordinator
    wait(request, lambda waiter: coordinator.sync(body.group_id, syncing, waiter), _sync_response)
    return None


def heartbeat(request: KafkaRequest) -> Any:
    """Extend a member's session."""
    body = request.body
    error = refusal_of(request, body.group_instance_id)
    if error is ErrorCode.NONE:
        caller = GroupCaller(body.member_id, body.group_instance_id, body.generation_id)
        error = request.context.coordinator.heartbeat(body.group_id, caller)
    return request.response(error_code=error)


def leave_group(request: KafkaRequest) -> Any:
    """End memberships."""
    body = request.body
    batched = request.version >= _BATCHED_FROM
    leaving = [(one.member_id, one.group_instance_id) for one in body.members]
    if not batched:
        leaving = [(body.member_id, None)]
    refusal = refusal_of(request)
    if refusal is not ErrorCode.NONE:
        return request.response(error_code=refusal)
    leave = request.context.coordinator.leave
    codes = [
        leave(body.group_id, GroupCaller(member_id, instance)) for member_id, instance in leaving
    ]
    if not batched:
        return request.response(error_code=codes[0])
    members = [
        request.struct(
            "MemberResponse", member_id=member_id, group_instance_id=instance, error_code=code
        )
        for (member_id, instance), code in zip(leaving, codes, strict=True)
    ]
    return request.response(members=members)


def check_group_id(group_id: str) -> ErrorCode:
    """Return INVALID_GROUP_ID for what is no group's id."""
    legal = 1 <= len(group_id) <= MAX_GROUP_ID_CHARACTERS
    return ErrorCode.NONE if legal else ErrorCode.INVALID_GROUP_ID


def refusal_of(request: KafkaRequest, instance: str | None = None) -> ErrorCode:
    """Return why a request of a group is refused: others there read what the client may not.

    As with Apache Kafka, a right that is revoked takes a topic from a pattern, and ends no member:
    one that names the topic goes on, and is refused its records and the commit of its offsets.
    """
    group_id, client = request.body.group_id, request.client
    coordinator = request.context.coordinator
    if instance is not None and not 1 <= len(instance) <= MAX_INSTANCE_ID_CHARACTERS:
        return ErrorCode.INVALID_REQUEST
    if (error := check_group_id(group_id)) is not ErrorCode.NONE:
        return error
    if client.may_read_group(group_id, coordinator.topics_read(group_id)):
        return ErrorCode.NONE
    coordinator.revoke(
        group_id, client.owner_name or "", lambda topic: client.may(topic, Right.SUBSCRIBE)
    )
    name_of = request.context.topics.kafka_names.of
    read = map(TopicName.parse, coordinator.topics_read(group_id))
    may = _may_read(request, map(name_of, read))
    return ErrorCode.NONE if may else ErrorCode.GROUP_AUTHORIZATION_FAILED


def _may_read(request: KafkaRequest, topics: Iterable[str]) -> bool:
    """Return whether the client may read topics, or has members that read them already."""
    found = ((topic, request.context.topics.find_kafka(topic)) for topic in topics)
    may, coordinator = request.client.may, request.context.coordinator
    hidden = [
        topic
        for topic, record in found
        if record is not None and not may(TopicName.parse(record.name), Right.SUBSCRIBE)
    ]
    owner = request.client.owner_name or ""
    return not hidden or coordinator.are_read_by(owner, request.body.group_id, hidden)


def wait(
    request: KafkaRequest,
    begin: Callable[[Waiter], None],
    respond: Callable[[KafkaRequest, Any], Any],
) -> None:
    """Have a request answered when its group answers, or dropped when its connection closes."""
    on_close, group_id = request.client.on_close, request.body.group_id
    coordinator = request.context.coordinator

    def answer(result: Result) -> None:
        on_close.pop(abandon, None)
        # What fails here ends this client's connection, not the group's other answers.
        request.client.connection.guard(lambda: request.answer(respond(request, result)))

    def abandon() -> None:
        coordinator.abandon(group_id, answer)

    on_close[abandon] = None
    begin(answer)


def _join_response(request: KafkaRequest, result: Any) -> Any:
    nothing = None if request.version >= _NULL_PROTOCOL_FROM else ""
    return request.response(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=nothing if result.protocol is None else result.protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            request.struct(
                "JoinGroupResponseMember",
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                metadata=one.metadata,
            )
            for one in result.members
        ],
    )


def _sync_response(request: KafkaRequest, result: Any) -> Any:
    return request.response(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


JOIN_GROUP: Final = KafkaApi(11, "JoinGroup", (0, 9), join_group)
HEARTBEAT: Final = KafkaApi(12, "Heartbeat", (0, 4), heartbeat)
LEAVE_GROUP: Final = KafkaApi(13, "LeaveGroup", (0, 5), leave_group)
SYNC_GROUP: Final = KafkaApi(14, "SyncGroup", (0, 5), sync_group)
