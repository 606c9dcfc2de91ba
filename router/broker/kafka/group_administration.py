"""DescribeGroups (15), ListGroups (16), DeleteGroups (42): the groups of the broker.

A group is one that has members, or positions on a topic: groups of other protocols are groups here
too, by the ids that `kafka.group` gives them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from router.access.permissions import Right
from router.broker.kafka.client import KafkaApi, KafkaRequest
from router.broker.kafka.coordinator import GroupCoordinator, StoredPosition
from router.broker.kafka.failures import REFUSALS, KafkaError, error_code
from router.broker.kafka.group_values import GroupState, KafkaMember
from router.broker.kafka.groups import KafkaGroup
from router.broker.topics.steps import all_in_steps, side_by_side, steps_of
from router.errors import TopicNotFoundError
from router.model import TopicName
from router.wire.kafka.error_codes import ErrorCode

CONSUMER: Final = "consumer"
CLASSIC: Final = "classic"
REFUSED_FROM: Final = 6
"""The first version of DescribeGroups in which a missing group is an error."""
NO_GROUP: Final = "Dead"
"""The state of a group that is not there."""


async def describe_groups(request: KafkaRequest) -> Any:
    """Answer with the states and members of classic groups; others are as if they were missing."""
    coordinator = request.context.coordinator
    stored = None
    groups = []
    for group_id in dict.fromkeys(request.body.groups):
        fields: dict[str, Any] = {"group_id": group_id, "protocol_type": "", "protocol_data": ""}
        group = coordinator.find(group_id)
        if isinstance(group, KafkaGroup):
            names = coordinator.topics_read(group_id)
            protocol = group.protocol or ""
            fields |= {
                "group_state": group.state.value,
                "protocol_type": group.protocol_type,
                "protocol_data": protocol if group.state is GroupState.STABLE else "",
                "members": [_member(request, one, protocol) for one in group.members.values()],
            }
        elif group is not None:
            names = coordinator.topics_read(group_id)
            fields |= {"group_state": NO_GROUP}
        else:
            stored = stored or await coordinator.stored_groups()
            names = frozenset(one.record.name for one in stored.get(group_id, ()))
            state = GroupState.EMPTY.value if names else NO_GROUP
            fields |= {"group_state": state, "protocol_type": CONSUMER if names else ""}
        if not await _may(request, names):
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
            fields = {"group_id": group_id, "error_code": error, "group_state": ""}
            fields |= {"protocol_type": "", "protocol_data": ""}
        elif request.version >= REFUSED_FROM and fields["group_state"] == NO_GROUP:
            why = "not found" if group is None else "is not a classic group"
            fields |= {
                "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
                "error_message": f"Group {group_id} {why}.",
            }
        groups.append(request.struct("DescribedGroup", **fields))
    return request.response(groups=groups)


async def list_groups(request: KafkaRequest) -> Any:
    """Answer with the groups of which the client may see a topic."""
    body, coordinator = request.body, request.context.coordinator
    found: dict[str, tuple[str, str, str]] = {}
    for group_id, places in (await coordinator.stored_groups()).items():
        if any(_sees(request, one.record.name) for one in places):
            found[group_id] = GroupState.EMPTY.value, CONSUMER, CLASSIC
    for group_id in coordinator.ids():
        group = coordinator.find(group_id)
        topics = coordinator.topics_read(group_id)
        seen = not topics or any(_sees(request, topic) for topic in topics)
        if not seen or group is None:
            continue
        if isinstance(group, KafkaGroup):
            found[group_id] = group.state.value, group.protocol_type, CLASSIC
        else:
            found[group_id] = group.state, CONSUMER, CONSUMER
    states = {state.lower() for state in body.states_filter}
    types = {kind.lower() for kind in body.types_filter}
    groups = [
        request.struct(
            "ListedGroup",
            group_id=group_id,
            protocol_type=protocol_type,
            group_state=state,
            group_type=kind,
        )
        for group_id, (state, protocol_type, kind) in sorted(found.items())
        if (not states or state.lower() in states) and (not types or kind in types)
    ]
    return request.response(groups=groups)


async def delete_groups(request: KafkaRequest) -> Any:
    """Answer once the groups without members and their offsets are gone.

    A group that is read before all of its offsets are gone keeps the others.
    """
    stored = await request.context.coordinator.stored_groups()
    results = [
        request.struct(
            "DeletableGroupResult",
            group_id=group_id,
            error_code=await _delete(request, group_id, stored.get(group_id, ())),
        )
        for group_id in dict.fromkeys(request.body.groups_names)
    ]
    return request.response(results=results)


async def _delete(
    request: KafkaRequest, group_id: str, places: Sequence[StoredPosition]
) -> ErrorCode:
    coordinator = request.context.coordinator
    if _has_members(coordinator, group_id):
        return ErrorCode.NON_EMPTY_GROUP
    if not places:
        return ErrorCode.GROUP_ID_NOT_FOUND
    on_topics = _on_topics(places)
    if not await _may(request, (one.record.name for one in on_topics)):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not await all_in_steps(on_topics, lambda one: not coordinator.is_read(one.record, one.name)):
        return ErrorCode.NON_EMPTY_GROUP
    try:
        async for step in steps_of(places):
            # Members and readers may have come, and members committed, since the step before.
            read = any(coordinator.is_read(one.record, one.name) for one in _on_topics(step))
            if read or _has_members(coordinator, group_id):
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
            await side_by_side(_forget(request, one) for one in step)
    except REFUSALS as failure:
        return error_code(failure)
    return ErrorCode.NONE


def _has_members(coordinator: GroupCoordinator, group_id: str) -> bool:
    group = coordinator.find(group_id)
    return group is not None and bool(group.members)


def _on_topics(places: Iterable[StoredPosition]) -> Collection[StoredPosition]:
    """Return one position for each topic and name of a group."""
    return {(one.record.id, one.name): one for one in places}.values()


async def _forget(request: KafkaRequest, place: StoredPosition) -> None:
    with suppress(TopicNotFoundError):  # it was deleted meanwhile, with the position
        partition = request.context.partition(place.record, place.number)
        await request.context.coordinator.offsets.delete(partition, place.name)


def _member(request: KafkaRequest, member: KafkaMember[Any], protocol: str) -> Any:
    return request.struct(
        "DescribedGroupMember",
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=f"/{member.client_host}",
        member_metadata=member.metadata(protocol),
        member_assignment=member.assignment,
    )


async def _may(request: KafkaRequest, topics: Iterable[str]) -> bool:
    may = request.client.may
    return await all_in_steps(topics, lambda topic: may(TopicName.parse(topic), Right.SUBSCRIBE))


def _sees(request: KafkaRequest, topic: str) -> bool:
    return request.client.may(TopicName.parse(topic), Right.VIEW)


DESCRIBE_GROUPS: Final = KafkaApi(15, "DescribeGroups", (0, 6), describe_groups)
LIST_GROUPS: Final = KafkaApi(16, "ListGroups", (0, 5), list_groups)
DELETE_GROUPS: Final = KafkaApi(42, "DeleteGroups", (0, 2), delete_groups)
