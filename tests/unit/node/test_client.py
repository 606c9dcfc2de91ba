"""A claim at the node's broker: what updates make of it, and what it sends."""

from __future__ import annotations

from typing import Any

import pytest

from router.node.client import BrokerClaim
from router.wire import node
from router.wire.node import node_pb2 as pb
from router.wire.pulsar import PulsarFrameReader


class Bell:
    def __init__(self) -> None:
        self.rung = 0

    def wake(self) -> None:
        self.rung += 1


class Wire:
    """A connection that keeps what is sent over it."""

    def __init__(self) -> None:
        self._reader = PulsarFrameReader()
        self.sent: list[pb.CommandRelease] = []

    def next_id(self) -> int:
        return 7

    def drop_claim(self, number: int) -> None:
        assert number == 7

    def send(self, data: bytes) -> None:
        for frame in self._reader.receive(data):
            self.sent.append(node.read(frame.command.extension).release)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def claim(wire: Wire) -> BrokerClaim:
    stand_in: Any = wire
    claim = BrokerClaim(stand_in, Bell())
    grants = [pb.Grant(partition=p, generation=10 + p) for p in range(3)]
    push(claim, granted=grants)
    return claim


def push(claim: BrokerClaim, **fields: Any) -> None:
    claim.pushed(pb.CommandClaimUpdate(claim_id=7, **fields), b"")


def test_withdrawn_partitions_are_granted_no_more(claim: BrokerClaim) -> None:
    push(claim, revoked=[1])
    push(claim, withdrawn=[0, 1], unavailable_reason="away")
    assert (claim.granted(), claim.revoked(), claim.unavailable_reason()) == (
        {2: 12},
        set(),
        "away",
    )


def test_partition_withdrawn_and_granted_in_one_update_is_granted_anew(claim: BrokerClaim) -> None:
    push(claim, withdrawn=[0], granted=[pb.Grant(partition=0, generation=20)])
    assert claim.granted() == {0: 20, 1: 11, 2: 12}


def test_trouble_lasts_until_an_update_does_not_tell_of_it(claim: BrokerClaim) -> None:
    push(claim, unavailable_reason="away")
    push(claim)
    assert claim.unavailable_reason() is None


def test_partitions_are_given_up_by_their_generations(claim: BrokerClaim, wire: Wire) -> None:
    push(claim, withdrawn=[1])
    claim.give_up([0, 1, 2])
    (release,) = wire.sent
    assert (list(release.partitions), list(release.generations)) == ([0, 2], [10, 12])
    assert claim.granted() == {}


def test_nothing_is_sent_when_all_was_withdrawn(claim: BrokerClaim, wire: Wire) -> None:
    push(claim, withdrawn=[0, 1, 2])
    claim.give_up([0, 1])
    assert wire.sent == []
