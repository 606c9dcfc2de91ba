"""The generated codec against the reference: every definition of kafka-python, every version."""

from __future__ import annotations

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.wire.kafka.errors import MalformedMessageError, UnwritableMessageError
from router.wire.kafka.runtime import KafkaMessage
from tests.wire.kafka import reference
from tests.wire.kafka.messages import MESSAGES, build, plain

SEEDS = st.integers(0, (1 << 32) - 1)
DEADLINE_SECONDS = 5.0
"""For reading bytes that are damaged: far more than they take, and far less than a hang."""

every_message = pytest.mark.parametrize("name", MESSAGES.names)


@every_message
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_bytes_and_values_are_those_of_the_reference_in_every_version(name: str, seed: int) -> None:
    cls = MESSAGES.message(name)
    definition = cls.definition()
    for version in definition.valid.numbers():
        value = reference.Chance(definition, version, seed).message()
        data = reference.write(definition, version, value)
        message = build(cls, value)
        assert message.write(version) == data
        assert message.size(version) == len(data)
        found, end = cls.read_from(b"before" + data + b"after", version, 6)
        assert end == 6 + len(data)
        assert plain(found) == value == reference.read(definition, version, data)
        assert found == message
        assert found.write(version) == data


@every_message
@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_json_carries_what_the_version_carries(name: str, seed: int) -> None:
    cls = MESSAGES.message(name)
    for version in cls.definition().valid.numbers():
        value = reference.Chance(cls.definition(), version, seed).message()
        message = build(cls, value)
        text = json.dumps(message.to_json(version))
        found = cls.from_json(json.loads(text), version)
        assert found == message
        assert found.write(version) == message.write(version)


@every_message
@given(seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_json_of_another_version_is_refused_where_the_classes_refuse_it(
    name: str, seed: int
) -> None:
    cls = MESSAGES.message(name)
    versions = cls.definition().valid.numbers()
    newest = versions[-1]
    message = build(cls, reference.Chance(cls.definition(), newest, seed).message())
    form = json.loads(json.dumps(message.to_json(newest)))
    for version in versions:
        try:
            found = written(cls.from_json(form, version), version)
        except MalformedMessageError as error:
            if "the version demands the field" in str(error):
                continue  # the newest version does not have it
            found = None
        assert found == written(message, version)


def written(message: KafkaMessage, version: int) -> bytes | None:
    """Return the bytes of a version, None if the message is refused."""
    try:
        return message.write(version)
    except UnwritableMessageError:
        return None


@pytest.mark.slow
@every_message
def test_bytes_that_end_anywhere_are_refused_with_a_sentence(name: str) -> None:
    cls = MESSAGES.message(name)
    definition = cls.definition()
    for version in definition.valid.numbers():
        value = reference.Chance(definition, version, version).message()
        data = reference.write(definition, version, value)
        for end in sorted({*range(min(len(data), 150)), *range(max(len(data) - 50, 0), len(data))}):
            with pytest.raises(MalformedMessageError) as failure:
                cls.read(data[:end], version)
            assert failure.value.message == name
            assert failure.value.field, failure.value


@every_message
def test_damaged_bytes_are_read_or_refused_in_bounded_time(name: str) -> None:
    cls = MESSAGES.message(name)
    definition = cls.definition()
    chance = random.Random(name)
    began = time.process_time()
    for version in definition.valid.numbers():
        value = reference.Chance(definition, version, version).message()
        data = reference.write(definition, version, value)
        for _ in range(20):
            damaged = bytearray(data)
            for _ in range(chance.randint(1, 3)):
                at = chance.randrange(len(damaged) + 1)
                size = chance.choice((1, 2, 4))
                damaged[at : at + size] = chance.choice((b"\xff", b"\x7f", b"\0")) * size
            try:
                cls.read(bytes(damaged), version)
            except MalformedMessageError as error:
                assert error.sentence  # noqa: PT017 what is read and what is refused is by chance
    assert time.process_time() - began < DEADLINE_SECONDS
