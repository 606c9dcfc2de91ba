"""Transactions of Pulsar clients over kills of the broker: whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from router.model import Message
from router.wire.pulsar import pack
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.conftest import greeted
from tests.broker.raw import RawClient
from tests.ports import free_port
from tests.processes import BrokerProcess

SOURCE = "persistent://public/default/source"
TARGET = "persistent://public/default/target"
TIMEOUT_MS = 3_600_000


def begin(raw: RawClient) -> dict[str, int]:
    begun = raw.ask("NEW_TXN", "NEW_TXN_RESPONSE", txn_ttl_seconds=TIMEOUT_MS, tc_id=0)
    return {"txnid_most_bits": begun.txnid_most_bits, "txnid_least_bits": begun.txnid_least_bits}


def end(raw: RawClient, ids: dict[str, int], action: Any) -> None:
    assert not raw.ask("END_TXN", "END_TXN_RESPONSE", txn_action=action, **ids).HasField("error")


def transform(raw: RawClient, place: pb.MessageIdData, number: int, ids: dict[str, int]) -> None:
    """Acknowledge a message and write two, in a transaction."""
    for half in range(2):
        payload = pack([Message(b"%d %d" % (number, half))], "raw", 2 * number + half, 1)
        raw.send("SEND", payload, producer_id=1, sequence_id=2 * number + half, **ids)
        raw.expect("SEND_RECEIPT")
    ack = raw.ask("ACK", "ACK_RESPONSE", consumer_id=0, ack_type=0, message_id=[place], **ids)
    assert not ack.HasField("error")


def shown(raw: RawClient, topic: str, count: int, kind: Any) -> list[int]:
    """Subscribe, and return the entries that come: so many and no more."""
    raw.subscribe(topic, 7, subType=kind)
    raw.send("FLOW", consumer_id=7, messagePermits=100)
    found = [raw.expect("MESSAGE").message_id.entryId for _ in range(count)]
    assert raw.silent()
    raw.ask("CLOSE_CONSUMER", "SUCCESS", consumer_id=7)
    return found


def test_a_kill_leaves_transactions_whole(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", free_port())
    broker.start()
    shared = pb.CommandSubscribe.Shared
    try:
        raw = greeted(RawClient(broker.url))
        raw.producer(SOURCE, 0)
        raw.producer(TARGET, 1)
        for number in range(3):
            raw.publish(b"%d" % number, sequence_id=number)
        raw.subscribe(SOURCE, 0, subType=shared)
        raw.send("FLOW", consumer_id=0, messagePermits=100)
        places = [raw.expect("MESSAGE").message_id for _ in range(3)]
        ended = [begin(raw), begin(raw), begin(raw)]
        for number, (place, ids) in enumerate(zip(places, ended, strict=True)):
            transform(raw, place, number, ids)
        raw.ask("CLOSE_CONSUMER", "SUCCESS", consumer_id=0)
        end(raw, ended[0], pb.COMMIT)
        end(raw, ended[1], pb.ABORT)
        raw.close()
        broker.kill()
        broker.start()
        raw = greeted(RawClient(broker.url))
        # The first is committed, the second aborted, and the third goes on.
        assert shown(raw, TARGET, 2, pb.CommandSubscribe.Exclusive) == [0, 1]
        assert shown(raw, SOURCE, 1, shared) == [1]
        end(raw, ended[2], pb.ABORT)
        assert shown(raw, SOURCE, 2, shared) == [1, 2]
        raw.close()
    finally:
        broker.stop()
