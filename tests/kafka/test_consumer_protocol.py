"""Heartbeats of the consumer group protocol (KIP-848) are answered as by Apache Kafka.

One request after the other, with what no client shows: fencing, static members, refusals.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest

from router.wire.kafka.error_codes import ErrorCode
from tests.histories.kafka_client import MESSAGES, KafkaConnection
from tests.kafka.clients import SECONDS
from tests.kafka.clients.confluent import Confluent
from tests.kafka.conftest import Clients
from tests.processes import wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(120)]
PARTITIONS: Final = 4


class Group(KafkaConnection):
    """A group of its own, which reads a topic of its own."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(int(bootstrap.rpartition(":")[2]))
        self.id, self.topic = f"g-{uuid.uuid4()}", f"t-{uuid.uuid4()}"
        client = Confluent(bootstrap)
        client.create(self.topic, PARTITIONS)
        client.close()
        self.topic_id = bytes(16)
        wait_until(self._coordinated, SECONDS)

    def beat(
        self, member: str, epoch: int, owned: list[int] | None = None, **fields: Any
    ) -> tuple[str, int, list[int] | None]:
        """Send a heartbeat; return the error, the epoch, and the partitions if there are some."""
        if owned is not None:
            one = MESSAGES.message("ConsumerGroupHeartbeatRequest").STRUCTS["TopicPartitions"](
                topic_id=self.topic_id, partitions=owned
            )
            fields["topic_partitions"] = [one] if owned else []
        given: dict[str, Any] = {"group_id": self.id, "member_id": member, "member_epoch": epoch}
        answer = self.request("ConsumerGroupHeartbeat", 1, **given | fields)
        found = None
        if answer.assignment is not None:
            found = []
            for part in answer.assignment.topic_partitions:
                self.topic_id = part.topic_id
                found += part.partitions
        return ErrorCode(answer.error_code).name, answer.member_epoch, found and sorted(found)

    def join(self, member: str, **fields: Any) -> tuple[str, int, list[int] | None]:
        """Join with the topic, unless other fields are given."""
        given: dict[str, Any] = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [self.topic],
        }
        return self.beat(member, 0, [], **given | fields)

    def _coordinated(self) -> bool:
        self.request("FindCoordinator", 4, key_type=0, coordinator_keys=[self.id])
        return bool(self.describe().error_code == ErrorCode.GROUP_ID_NOT_FOUND)

    def describe(self) -> Any:
        """Return the group as it is described."""
        (group,) = self.request(
            "ConsumerGroupDescribe", 1, group_ids=[self.id], include_authorized_operations=False
        ).groups
        return group

    def settle(self, member: str) -> int:
        """Join, and send heartbeats until all partitions are assigned; return the epoch then."""
        error, epoch, joined = self.join(member)
        assert error == "NONE"
        owned = joined or []

        def beat() -> bool:
            nonlocal epoch, owned
            error, epoch, assigned = self.beat(member, epoch, owned)
            assert error == "NONE"
            owned = owned if assigned is None else assigned
            return len(owned) == PARTITIONS

        wait_until(beat, SECONDS)
        return epoch


@pytest.fixture
def group(clients: Clients) -> Iterator[Group]:
    with closing(Group(clients.bootstrap)) as found:
        yield found


def test_heartbeats_are_refused_as_by_apache_kafka(group: Group) -> None:
    timeout: dict[str, Any] = {"rebalance_timeout_ms": 60_000}
    assert [
        group.join(""),
        group.join("a", rebalance_timeout_ms=-1),
        group.join("a", subscribed_topic_names=None),
        group.beat("a", 0, None, subscribed_topic_names=[group.topic], **timeout),
        group.beat("a", 0, [1], subscribed_topic_names=[group.topic], **timeout),
        group.join("a", instance_id=""),
        group.beat("a", -3),
        group.beat("a", -2),
    ] == [("INVALID_REQUEST", 0, None)] * 8
    assert group.join("a", server_assignor="sticky")[0] == "UNSUPPORTED_ASSIGNOR"
    pattern: dict[str, Any] = {"subscribed_topic_names": None, "subscribed_topic_regex": "("}
    assert group.join("a", **pattern)[0] == "INVALID_REGULAR_EXPRESSION"


def test_members_are_fenced_by_their_epoch_and_join_again(group: Group) -> None:
    epoch = group.settle("a")
    assert group.beat("a", epoch + 9)[0] == "FENCED_MEMBER_EPOCH"
    assert group.beat("b", epoch)[0] == "UNKNOWN_MEMBER_ID"
    assert group.join("a") == ("NONE", epoch, [0, 1, 2, 3])
    shown = group.describe()
    assert (shown.group_state, shown.assignor_name, shown.group_epoch) == (
        "Stable",
        "uniform",
        epoch,
    )
    (member,) = shown.members
    assert (member.member_id, member.member_type, member.subscribed_topic_regex) == ("a", 1, "")
    assert group.beat("a", -1) == ("NONE", -1, None)
    assert group.beat("a", epoch)[0] == "UNKNOWN_MEMBER_ID"


def test_a_partition_is_released_before_it_is_assigned(group: Group) -> None:
    first = group.settle("a")
    assert group.join("b")[2] == []
    kept = list[int]()

    def revoked() -> bool:
        nonlocal kept
        found = group.beat("a", first, [0, 1, 2, 3])
        kept = found[2] or []
        return found[:2] == ("NONE", first) and len(kept) == 2

    wait_until(revoked, SECONDS)
    _, second, assigned = group.beat(
        "b", 0, [], rebalance_timeout_ms=60_000, subscribed_topic_names=[group.topic]
    )
    assert assigned == []
    error, then, _ = group.beat("a", first, kept)
    assert (error, then > first) == ("NONE", True)
    lost = group.beat("a", first, kept)
    assert lost[:2] == ("NONE", then)
    assert group.beat("a", first)[0] == "FENCED_MEMBER_EPOCH"
    assert group.beat("a", first, [0, 1, 2, 3])[0] == "FENCED_MEMBER_EPOCH"
    assert group.beat("b", second)[2] == sorted({0, 1, 2, 3} - set(kept))


def test_a_static_member_comes_back_under_another_id(group: Group) -> None:
    instance: dict[str, Any] = {"instance_id": "i"}
    epoch = group.join("a", **instance)[1]
    assert group.join("b", **instance)[0] == "UNRELEASED_INSTANCE_ID"
    assert group.join("a", **instance)[0] == "UNRELEASED_INSTANCE_ID"
    assert group.beat("b", epoch, **instance)[0] == "FENCED_INSTANCE_ID"
    assert group.beat("a", epoch, instance_id="j")[0] == "UNKNOWN_MEMBER_ID"
    assert group.beat("a", -2, **instance) == ("NONE", -2, None)
    assert group.describe().group_state == "Reconciling"
    assert group.beat("a", epoch, **instance)[0] == "FENCED_MEMBER_EPOCH"
    assert group.join("b", **instance)[0] == "NONE"
    assert group.beat("a", epoch, **instance)[0] == "FENCED_INSTANCE_ID"
    assert group.beat("a", epoch)[0] == "UNKNOWN_MEMBER_ID"
    assert group.beat("b", -2, **instance)[0] == "NONE"
    assert group.beat("b", -1, **instance) == ("NONE", -1, None)
