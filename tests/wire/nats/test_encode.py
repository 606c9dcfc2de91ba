"""What the server sends, as nats-py's parser takes it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.protocol.parser import Parser

from router.wire.nats import encode
from router.wire.nats.headers import build
from router.wire.nats.message import NatsMessage

SUBJECTS = st.sampled_from(["a", "a.b.c", "größe.x"])
BLOCKS = st.sampled_from([b"", build([("A", "1"), ("B", "ü")])])
MESSAGES = st.builds(
    NatsMessage, SUBJECTS, st.sampled_from(["", "_INBOX.1"]), BLOCKS, st.binary(max_size=40)
)


class Received:
    """What nats-py's parser calls."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._server_info: dict[str, Any] = {}

    async def _process_msg(self, sid: int, *parts: bytes | None) -> None:
        self.found.append((sid, *(bytes(part or b"") for part in parts)))

    async def _process_err(self, text: str) -> None:
        self.found.append(text)

    async def _process_ping(self) -> None:
        self.found.append("ping")

    async def _process_pong(self) -> None:
        self.found.append("pong")

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.found.append(info)


def by_nats_py(data: bytes) -> list[Any]:
    received = Received()
    asyncio.run(Parser(received).parse(data))
    return received.found


@pytest.mark.no_cover
@given(messages=st.lists(MESSAGES.filter(lambda one: bool(one.reply)), min_size=1, max_size=4))
def test_a_run_of_messages_is_as_many_messages(messages: list[NatsMessage]) -> None:
    for sid in (b"7", b"\xff"):
        found = b"".join(encode.run_parts(sid, messages))
        assert found == b"".join(encode.msg(sid, message) for message in messages)


@settings(max_examples=50)
@given(messages=st.lists(MESSAGES, max_size=4), shown=st.none() | SUBJECTS)
def test_nats_py_reads_messages(messages: list[NatsMessage], shown: str | None) -> None:
    data = b"".join(
        encode.msg(str(number) if number % 2 else b"%d" % number, message, shown)
        for number, message in enumerate(messages)
    )
    wanted = [
        (number, (shown or one.subject).encode(), one.reply.encode(), one.payload, one.headers)
        for number, one in enumerate(messages)
    ]
    assert by_nats_py(data) == wanted


@given(message=MESSAGES)
def test_all_but_the_name_of_the_subscription_is_the_same_for_all(message: NatsMessage) -> None:
    before, behind = encode.msg_parts(message)
    assert before + b"77" + behind == encode.msg(b"77", message)


def test_nats_py_reads_the_short_operations() -> None:
    data = encode.OK + encode.PING + encode.PONG + encode.err("Slow\r\n Consumer")
    assert by_nats_py(data) == ["ping", "pong", "'slow consumer'"]


def test_info_is_json_on_one_line() -> None:
    fields = {"server_id": "X", "proto": 1, "headers": True, "name": "ü\n"}
    line = encode.info(fields)
    assert line.startswith(b"INFO {")
    assert line.endswith(b"} \r\n")
    assert line.count(b"\n") == 1
    assert json.loads(line[5:]) == fields
