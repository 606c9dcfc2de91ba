"""The page "Differences from Apache Kafka" is complete and true."""

from __future__ import annotations

import re
import socket
import struct
from typing import Final

import pytest

from router.broker.kafka.topic_configs import BROKER_CONFIGS, TOPIC_CONFIGS
from tests.docs.console import ROOT
from tests.kafka.conftest import KafkaStack
from tests.kafka.differences import DIFFERENCES
from tests.servers.kafka import Kafka
from tests.wire.kafka.releases import releases

PAGE = " ".join((ROOT / "docs" / "kafka-differences.md").read_text("utf-8").split())
API_VERSIONS: Final = 18
SECONDS = 10.0


def test_every_difference_is_on_the_page() -> None:
    assert [name for name, found in DIFFERENCES.items() if found.why not in PAGE] == []


@pytest.mark.parametrize("name", [*TOPIC_CONFIGS, *BROKER_CONFIGS])
def test_every_config_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_apis_that_are_not_served_are_named(kafka: Kafka, router_stack: KafkaStack) -> None:
    named = set(re.findall(r"\b[A-Z]\w+\b", PAGE.partition("say so:")[2]))
    missing = advertised(kafka.address).keys() - advertised(router_stack.kafka).keys()
    assert {names()[key] for key in missing} == named & set(names().values())


def test_versions_that_are_served_apache_kafka_serves_too(
    kafka: Kafka, router_stack: KafkaStack
) -> None:
    theirs = advertised(kafka.address)
    for key, (_, last) in advertised(router_stack.kafka).items():
        assert last <= theirs[key][1], names()[key]


def advertised(address: str) -> dict[int, tuple[int, int]]:
    """Return the first and last version of each API that a broker advertises."""
    host, port = address.split(":")
    request = struct.pack(">hhih", API_VERSIONS, 0, 1, -1)
    with socket.create_connection((host, int(port)), SECONDS) as client:
        client.sendall(struct.pack(">i", len(request)) + request)
        answer = client.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        body = answer.read(size)
    (count,) = struct.unpack_from(">i", body, 6)
    found = struct.iter_unpack(">hhh", body[10 : 10 + 6 * count])
    return {key: (first, last) for key, first, last in found}


def names() -> dict[int, str]:
    """Return the names of APIs by their keys."""
    found = {}
    for release in releases("kafka-clients"):
        for file, text in release.texts.items():
            if file.endswith("Request.json") and (key := re.search(r'"apiKey": *(\d+)', text)):
                found[int(key[1])] = file.removesuffix("Request.json")
    return found
