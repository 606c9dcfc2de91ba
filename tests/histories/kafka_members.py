"""What members of Kafka's groups request, by both protocols, each call one request or two."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Final

from router.wire.kafka.error_codes import ErrorCode
from tests.histories.kafka_client import KafkaConnection, expect, struct
from tests.histories.recording import Output, RefusedError, UnknownOutcomeError

SESSION_MS: Final = 60_000
"""Longer than a history: no member is removed that only waits."""
REFUSED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
"""Nothing was done; any other error may come after a part of it."""
PROTOCOL: Final = "history"
LEAVING: Final = -1


class MemberConnection(KafkaConnection):
    """One connection of a member; the last topic id that it was sent is kept."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._topic_id = bytes(16)

    def new_member(self, group: str) -> str:
        """Return a member id of the classic protocol; raise RefusedError if there is none now."""
        try:
            answer = self._join(group, "", 0)
        except UnknownOutcomeError as error:
            raise RefusedError(str(error)) from error
        if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            raise RefusedError(f"error code {answer.error_code}")
        return str(answer.member_id)

    def join(
        self, group: str, member: str, partitions: int, rebalance_ms: int, chance: random.Random
    ) -> Output:
        """Join by the classic protocol; the leader gives each partition to a member by chance."""
        joined = self._join(group, member, rebalance_ms)
        if joined.error_code in REFUSED:
            return refused(joined.error_code)
        expect(joined.error_code)
        assigned: dict[str, list[int]] = {one.member_id: [] for one in joined.members}
        for partition in range(partitions if assigned else 0):
            assigned[chance.choice(sorted(assigned))].append(partition)
        request = "SyncGroupRequest"
        synced = self.request(
            "SyncGroup",
            3,
            group_id=group,
            generation_id=joined.generation_id,
            member_id=member,
            assignments=[
                struct(
                    request,
                    f"{request}Assignment",
                    member_id=one,
                    assignment=json.dumps(numbers).encode(),
                )
                for one, numbers in assigned.items()
            ],
        )
        if synced.error_code in REFUSED:
            return refused(synced.error_code)
        expect(synced.error_code)
        found = json.loads(bytes(synced.assignment) or b"[]")
        return {"epoch": joined.generation_id, "partitions": found}

    def is_current(self, group: str, member: str, generation: int) -> bool:
        """Return whether a heartbeat of the classic protocol is answered without an error."""
        answer = self.request(
            "Heartbeat", 3, group_id=group, member_id=member, generation_id=generation
        )
        return not answer.error_code

    def beat(self, group: str, topic: str, member: str, epoch: int, owned: Sequence[int]) -> Output:
        """Send a heartbeat of the consumer protocol; epoch 0 joins, LEAVING leaves.

        The partitions of the answer are None if they are what they were.
        """
        request = "ConsumerGroupHeartbeatRequest"
        parts = struct(request, "TopicPartitions", topic_id=self._topic_id, partitions=list(owned))
        fields: dict[str, Any] = {}
        if epoch == 0:
            fields = {"rebalance_timeout_ms": SESSION_MS, "subscribed_topic_names": [topic]}
        answer = self.request(
            "ConsumerGroupHeartbeat",
            1,
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            topic_partitions=[parts] if owned else [],
            **fields,
        )
        if answer.error_code in REFUSED:
            return refused(answer.error_code)
        expect(answer.error_code)
        found = None
        if answer.assignment is not None:
            found = []
            for one in answer.assignment.topic_partitions:
                self._topic_id = one.topic_id
                found += one.partitions
        return {"epoch": answer.member_epoch, "partitions": found}

    def leave(self, group: str, member: str) -> Output:
        """Leave by the classic protocol."""
        one = struct("LeaveGroupRequest", "MemberIdentity", member_id=member)
        answer = self.request("LeaveGroup", 3, group_id=group, members=[one])
        expect(answer.error_code)
        return {}

    def commit_as(
        self, group: str, topic: str, member: str, epoch: int, partition: int, offset: int
    ) -> Output:
        """Commit an offset as a member of an epoch or generation."""
        request = "OffsetCommitRequest"
        part = struct(
            request, f"{request}Partition", partition_index=partition, committed_offset=offset
        )
        named = struct(request, f"{request}Topic", name=topic, partitions=[part])
        answer = self.request(
            "OffsetCommit",
            9,
            group_id=group,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            topics=[named],
        )
        code = answer.topics[0].partitions[0].error_code
        if code in REFUSED:
            return refused(code)
        expect(code)
        return {}

    def _join(self, group: str, member: str, rebalance_ms: int) -> Any:
        protocol = struct(
            "JoinGroupRequest", "JoinGroupRequestProtocol", name=PROTOCOL, metadata=b""
        )
        return self.request(
            "JoinGroup",
            5,
            group_id=group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member,
            protocol_type=PROTOCOL,
            protocols=[protocol],
        )


def refused(code: int) -> Output:
    """Return what the judge takes for a call that did nothing, with its error."""
    return {"status": "refused", "reason": ErrorCode(code).name}
