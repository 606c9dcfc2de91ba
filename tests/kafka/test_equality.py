"""What any client produced with any compression, all clients read as the same records."""

from __future__ import annotations

import pytest

from tests.kafka.clients import CODECS, Record
from tests.kafka.conftest import CLIENTS, Clients
from tests.kafka.scenarios import T0, new_topic

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]


def test_all_clients_read_the_same(clients: Clients) -> None:
    topic = new_topic(clients["kafka-python"])
    sent: list[Record] = []
    for number, name in enumerate(CLIENTS):
        for codec in CODECS:
            batch = [
                Record(f"{name} {codec} {n} ".encode() * 9, b"key", (("n", b"%d" % n),), T0 + n)
                for n in range(number, number + 3)
            ]
            assert clients[name].produce(topic, batch, codec=codec)[0] == len(sent)
            sent += batch
    for name in CLIENTS:
        seen = clients[name].read(topic, 0, len(sent))
        assert [one.offset for one in seen] == list(range(len(sent))), name
        assert [one.record for one in seen] == sent, name
