"""A broker that ends as it is told to: exactly what it stored was answered."""

from __future__ import annotations

import signal

from tests.broker.conftest import Connect, greeted
from tests.processes import BrokerProcess


def test_everything_that_was_read_is_answered_when_the_broker_ends(
    broker: BrokerProcess, connect: Connect
) -> None:
    raw = greeted(connect(broker))
    raw.producer("t")
    for n in range(500):
        raw.send_entry(b"v" * 500, sequence_id=n)
    assert broker.process is not None
    broker.process.send_signal(signal.SIGTERM)
    receipts = []
    while (frame := raw.read()) is not None:
        receipts.append(frame.command.send_receipt.sequence_id)
    assert receipts == list(range(len(receipts)))
    assert broker.process.wait(10) == 0
    broker.start()
    again = greeted(connect(broker))
    again.subscribe("t")
    last = again.ask("GET_LAST_MESSAGE_ID", "GET_LAST_MESSAGE_ID_RESPONSE", consumer_id=0)
    stored = 0 if last.last_message_id.entryId > 2**63 else last.last_message_id.entryId + 1
    assert stored == len(receipts)
