"""The page "Differences from Apache Pulsar" is complete and true."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from router.broker.consume.dispatch import individual
from router.broker.pulsar import consumers, patterns, producers, watching
from router.schemas import definitions
from router.wire.pulsar import encode
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.conftest import greeted
from tests.broker.raw import RawClient
from tests.docs.console import ROOT
from tests.interop.differences import DIFFERENCES
from tests.processes import BrokerProcess

PAGE = " ".join((ROOT / "docs" / "pulsar-differences.md").read_text("utf-8").split())
TOPIC = "persistent://public/default/x"


@pytest.mark.parametrize("name", DIFFERENCES)
def test_every_difference_is_on_the_page(name: str) -> None:
    assert DIFFERENCES[name].why in PAGE


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        (individual.MAX_DELAYED_ENTRIES, "at most {} of one subscription are delayed at a time"),
        (individual.MAX_HELD, "at most {} are held for one consumer at a time"),
        (individual.MAX_HELD_BY_ALL, "and {} for all of a subscription"),
        (producers.MAX_PRODUCERS, "at most {} producers"),
        (consumers.MAX_CONSUMERS, "{} consumers and"),
        (watching.MAX_WATCHERS, "{} watched lists"),
        (patterns.MAX_PATTERN, "RE2, up to {} characters"),
        (consumers.MAX_NAME, "any character, {} of them"),
        (definitions.MAX_DEFINITION, "at most {} bytes of a definition"),
        (definitions.MAX_DEPTH, "{} deep"),
        (definitions.MAX_BRANCHES, "with {} branches of a union"),
    ],
)
def test_bounds_are_those_of_the_code(bound: int, sentence: str) -> None:
    assert sentence.format(f"{bound:,}") in PAGE


def test_the_commands_that_are_refused_are_named(broker: BrokerProcess) -> None:
    named = PAGE.partition("Commands that are refused:")[2].partition(". ")[0]
    assert set(re.findall(r"`(\w+)`", named)) == {
        name for name in client_commands() if refused(broker, name)
    }


def client_commands() -> list[str]:
    """Return the commands that a client may send and that have an answer."""
    found = []
    for name, number in pb.BaseCommand.Type.items():
        field = pb.BaseCommand.DESCRIPTOR.fields_by_number.get(number)
        body = field.message_type if field is not None else None
        asks = body is not None and "request_id" in body.fields_by_name
        if asks and not name.endswith(("RESPONSE", "SUCCESS")) and name != "ERROR":
            found.append(name)
    return found


def refused(broker: BrokerProcess, name: str) -> bool:
    """Return whether a command is answered with NotAllowedError when nothing is wrong with it."""
    number: Any = pb.BaseCommand.Type.Value(name)
    command = pb.BaseCommand(type=number)
    body = getattr(command, pb.BaseCommand.DESCRIPTOR.fields_by_number[number].name)
    fill(body)
    client = greeted(RawClient(broker.url))
    try:
        client.send_bytes(encode(command))
        with suppress(TimeoutError):
            frame = client.read(1)
            return frame is not None and "error: NotAllowedError" in str(frame.command)
        return False
    finally:
        client.close()


def fill(message: Any) -> None:
    """Give a message what it has to have."""
    for field in message.DESCRIPTOR.fields:
        if not field.is_required:
            continue
        if field.message_type is not None:
            fill(getattr(message, field.name))
            getattr(message, field.name).SetInParent()
        elif field.cpp_type == field.CPPTYPE_ENUM:
            setattr(message, field.name, field.enum_type.values[0].number)
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, "public/default" if field.name == "namespace" else TOPIC)
        elif field.type == field.TYPE_BYTES:
            setattr(message, field.name, b"x")
        else:
            setattr(message, field.name, 1)


def test_versions_of_the_clients_are_those_that_run() -> None:
    pinned = (Path(ROOT) / "setup.cfg").read_text("utf-8")
    assert "pulsar-client==3.13.0" in pinned
    assert "`pulsar-client` 3.13.0" in PAGE
    modules = (Path(ROOT) / "tests/interop/golang/go.mod").read_text("utf-8")
    assert "pulsar-client-go v0.12.1" in modules
    assert "`pulsar-client-go` 0.12.1" in PAGE
