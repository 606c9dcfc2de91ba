"""Every definition of Kafka 4.4.0 in every version, beside Apache's own classes."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from router.wire.kafka.compatibility import compare_sets
from router.wire.kafka.engine import Messages
from router.wire.kafka.errors import KafkaMessageError, MalformedMessageError
from router.wire.kafka.json_form import UNKNOWN_TAGS
from router.wire.kafka.runtime import KafkaMessage
from tests.wire.kafka import reference
from tests.wire.kafka.messages import build
from tests.wire.kafka.oracle import Oracle, question, running
from tests.wire.kafka.releases import Release, releases

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

SEEDS = 3
DEFINITIONS = 286
PAIRS = 744
"""Names with their versions, over all jars."""
NO_VERSION = {"ControlledShutdown", "LeaderAndIsr", "StopReplica", "UpdateMetadata"}
HOSTILE = [
    *(number.to_bytes(4) for number in (0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)),
    *(number.to_bytes(2) for number in (0x7FFF, 0x8000, 0xFFFF)),
    *(number.to_bytes(1) for number in (0, 1, 0x7F, 0x80, 0xFF)),
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x08",
    b"\x80\x80\x80\x80\x80\x01",
]
"""Counts and lengths, fixed and as varints, that no message of a few bytes has."""
RECORDS = {"records", "unalignedRecords"}
"""Members that Apache's converters leave empty."""
MUTATIONS = 60
"""Of each message in its newest version."""


@pytest.fixture(scope="module")
def jars() -> list[tuple[Release, Messages]]:
    found = releases("kafka-clients") + releases("kafka-server")
    return [(release, Messages(release.texts)) for release in found]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with running(tmp_path_factory.mktemp("classes")) as found:
        yield found


Jars = list[tuple[Release, Messages]]
Made = tuple[str, int, KafkaMessage, bytes]


def made(messages: Messages, seeds: range, *, newest: bool = False) -> Iterator[Made]:
    """Yield messages by chance, in all versions or the newest: name, version, message, bytes."""
    for name in messages.names:
        cls = messages.message(name)
        definition = cls.definition()
        for version in list(definition.valid.numbers())[-1 if newest else 0 :]:
            for seed in seeds:
                value = reference.Chance(definition, version, seed).message()
                message = build(cls, value)
                yield name, version, message, message.write(version)


def test_bytes_and_json_are_those_of_apaches_classes(jars: Jars, oracle: Oracle) -> None:
    pairs = set()
    for release, messages in jars:
        values = list(made(messages, range(SEEDS)))
        forms = [message.to_json(version) for _, version, message, _ in values]
        read = oracle.answers(
            question(release, name, version, hex=data.hex()) for name, version, _, data in values
        )
        written = oracle.answers(
            question(release, name, version, json=form)
            for (name, version, _, _), form in zip(values, forms, strict=True)
        )
        for (name, version, message, data), form, one, other in zip(
            values, forms, read, written, strict=True
        ):
            pairs.add((name, version))
            assert one.get("hex") == data.hex(), (name, version, message, one)
            known_form = without(form, {UNKNOWN_TAGS})
            assert without(known_form, RECORDS) == without(one["json"], RECORDS), (name, version)
            known = type(message).from_json(known_form, version)
            assert other.get("hex") == known.write(version).hex(), (name, version, form, other)
    assert len(pairs) == PAIRS


def test_bytes_that_end_early_are_refused_by_both(jars: Jars, oracle: Oracle) -> None:
    for release, messages in jars:
        values = [
            (name, version, data[:end])
            for name, version, _, data in made(messages, range(1, 2), newest=True)
            for end in range(0, len(data), max(1, len(data) // 5))
        ]
        answers = oracle.answers(question(release, n, v, hex=d.hex()) for n, v, d in values)
        for (name, version, data), answer in zip(values, answers, strict=True):
            assert "error" in answer, (name, version, data)
            assert "ClassNotFound" not in answer["error"]
            with pytest.raises(MalformedMessageError):
                messages.message(name).read(data, version)


def test_hostile_counts_and_lengths_that_apache_refuses_are_refused(
    jars: Jars, oracle: Oracle
) -> None:
    # Ours are stricter with the size of a tagged field that is known, which Apache's do not read.
    chance, refused = random.Random(4), 0
    for release, messages in jars:
        values = []
        for name, version, _, data in made(messages, range(2, 3), newest=True):
            for _ in range(MUTATIONS if data else 0):
                at, hostile = chance.randrange(len(data)), chance.choice(HOSTILE)
                end = at + chance.choice((1, len(hostile)))
                values.append((name, version, data[:at] + hostile + data[end:]))
        answers = oracle.answers(question(release, n, v, hex=d.hex()) for n, v, d in values)
        for (name, version, data), answer in zip(values, answers, strict=True):
            try:
                ours = messages.message(name).read(data, version).write(version)
            except KafkaMessageError:
                refused += "error" in answer
            else:
                assert answer.get("hex") == ours.hex(), (name, version, data.hex(), answer)
    assert refused > DEFINITIONS


def test_the_definitions_are_complete_and_compatible_with_themselves(jars: Jars) -> None:
    assert sum(len(messages.names) for _, messages in jars) == DEFINITIONS
    empty = set()
    for _, messages in jars:
        definitions = {name: messages.definition(name) for name in messages.names}
        assert compare_sets(definitions, definitions) == []
        empty |= {name for name, found in definitions.items() if found.valid.empty}
    assert empty == {f"{name}{kind}" for name in NO_VERSION for kind in ("Request", "Response")}


def without(value: Any, keys: Collection[str]) -> Any:
    """Return JSON without some members of all objects."""
    if isinstance(value, list):
        return [without(one, keys) for one in value]
    if isinstance(value, dict):
        return {key: without(one, keys) for key, one in value.items() if key not in keys}
    return value
