"""What refuses calls besides their own contents: topics that are there, other streams, bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.access.permissions import Right
from router.broker.nats.consumers import consumers
from router.broker.nats.protocol import api
from router.broker.nats.protocol.authorization import NatsCaller
from router.broker.nats.streams.streams import NO_BOUND
from router.model import NO_PROPERTIES
from router.wire.nats.message import NatsMessage
from tests.unit.broker.nats.consumers.test_consumers import Restricted
from tests.unit.broker.nats.serving import CALLER, DEADLINE, Serving, run


async def error_of(served: Serving, subject: str, caller: NatsCaller = CALLER, **body: Any) -> int:
    """Return the code of the error that a call is answered with, 0: it is served."""
    message = NatsMessage(f"$JS.API.{subject}", payload=json.dumps(body).encode())
    [reply] = await served.request(caller, message, 1, DEADLINE)
    return int(json.loads(reply.payload).get("error", {}).get("err_code", 0))


def test_a_topic_becomes_a_stream_for_those_who_may_manage_it(tmp_path: Path) -> None:
    async def test(served: Serving) -> None:
        topics = served.topics
        await topics.create(topics.parse("plain"), 0, NO_BOUND, NO_PROPERTIES)
        others = [one for one in Right if one is not Right.MANAGE]
        config: dict[str, Any] = {"name": "plain", "subjects": ["plain.>"]}
        assert await error_of(served, "STREAM.CREATE.plain", Restricted(*others), **config)
        assert served.server.streams.for_subject("plain.a") is None
        manager = Restricted(Right.VIEW, Right.MANAGE)
        assert not await error_of(served, "STREAM.CREATE.plain", manager, **config)

    run(tmp_path, test)


def test_an_update_takes_no_subject_of_another_stream(tmp_path: Path) -> None:
    async def test(served: Serving) -> None:
        await served.stream()
        assert not await error_of(served, "STREAM.CREATE.T", name="T", subjects=["t.>"])
        both: dict[str, Any] = {"name": "T", "subjects": ["t.>", "s.a"]}
        assert await error_of(served, "STREAM.UPDATE.T", **both) == 10065

    run(tmp_path, test)


def test_a_stream_has_no_more_consumers_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MAX_CONSUMERS", 1)

    async def test(served: Serving) -> None:
        await served.stream()
        await served.consumer("c")
        config = {"durable_name": "d", "ack_policy": "explicit"}
        body: dict[str, Any] = {"stream_name": "S", "config": config}
        assert await error_of(served, "CONSUMER.CREATE.S.d", **body) == 10026

    run(tmp_path, test)


def test_calls_beyond_the_bound_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_CALLS", 0)

    async def test(served: Serving) -> None:
        assert await error_of(served, "STREAM.LIST") == 10167

    run(tmp_path, test)
