"""Users of each Kafka client see the same on Apache Kafka and on the router's broker."""

from __future__ import annotations

import pytest

from tests.kafka.conftest import CLIENTS, OURS, Clients
from tests.kafka.differences import DIFFERENCES, QUIRKS
from tests.kafka.scenarios import SCENARIOS

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]
EAGER_ONLY = ("aiokafka", "kafka-go")
CONSUMER_PROTOCOL = ("confluent-kafka", "java-4.4.0")
"""The clients with the group protocol of KIP-848."""
BY_THE_BROKER = ("rebalance_by_the_broker", "change_of_the_protocol_of_a_group")
CASES = [
    (client, name)
    for client in CLIENTS
    for name in SCENARIOS
    if not (client in EAGER_ONLY and name == "cooperative_rebalance")
    and not (client not in CONSUMER_PROTOCOL and name in BY_THE_BROKER)
]


@pytest.mark.parametrize(("client", "name"), CASES)
def test_clients_see_what_apache_kafka_shows(clients: Clients, client: str, name: str) -> None:
    scenario, expected = SCENARIOS[name]
    expected = QUIRKS.get((client, name), expected)
    if clients.broker == OURS and name in DIFFERENCES:
        expected = DIFFERENCES[name].ours
    assert scenario(clients[client]) == expected
