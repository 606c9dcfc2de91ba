"""Long lists of subjects do not keep the broker busy, whoever sends them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from router.access.permissions import Right
from router.broker.nats.streams.log.subject_index import SubjectBudget, SubjectIndex
from router.wire.nats.jetstream.stream_rules import MAX_SUBJECTS
from router.wire.nats.message import NatsMessage
from tests.unit.broker.nats.consumers.test_consumers import Restricted
from tests.unit.broker.nats.serving import CALLER, Inbox, Serving, answer, run

MANY = 20_000
SECONDS = 3.0  # of processor time, in which the event loop serves no other client
"""Compared with each other, so many would take minutes."""


def test_long_lists_are_refused_at_once(tmp_path: Path) -> None:
    async def test(served: Serving) -> None:
        await served.stream(max_msgs=9)

        async def code_of(call: str, body: Any) -> int:
            began = time.thread_time()
            reply = await answer(served.server.api, CALLER, call, json.dumps(body).encode())
            assert time.thread_time() - began < SECONDS
            assert reply is not None
            return int(reply.to_json().get("error", {}).get("err_code", 0))

        for count, code in ((MANY, 10052), (MAX_SUBJECTS + 1, 10052), (MAX_SUBJECTS, 0)):
            subjects = [f"a{place}.*" for place in range(count)]
            assert await code_of("STREAM.CREATE.Q", {"name": "Q", "subjects": subjects}) == code
            config = {"name": "x", "filter_subjects": [f"s.{one}" for one in subjects]}
            asked = {"stream_name": "S", "config": config}
            assert await code_of("CONSUMER.CREATE.S.x", asked) == code

    run(tmp_path, test)


def test_who_may_create_no_stream_learns_nothing_of_others(tmp_path: Path) -> None:
    async def test(served: Serving) -> None:
        await served.stream()
        codes = []
        for subjects in (["s.a"], ["free.a"]):
            body = json.dumps({"name": "NEW", "subjects": subjects}).encode()
            caller = Restricted(*set(Right) - {Right.CREATE})
            reply = await answer(served.server.api, caller, "STREAM.CREATE.NEW", body)
            assert reply is not None
            codes.append(reply.to_json()["error"]["err_code"])
        assert codes[0] == codes[1] != 10065

    run(tmp_path, test)


def test_many_filters_cost_no_more_for_each_subject() -> None:
    index = SubjectIndex(SubjectBudget(MANY))
    for place in range(MANY):
        index.add(f"s.{place}.x", place + 1, 1)
    filters = [f"s.*.y{place}" for place in range(MAX_SUBJECTS)]
    began = time.thread_time()
    assert not list(index.matching(filters))
    assert time.thread_time() - began < SECONDS
    found = {subject for subject, _ in index.matching([*filters, "s.7.*", "s.8.>"])}
    assert found == {"s.7.x", "s.8.x"}


def test_calls_beyond_the_bound_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.broker.nats.protocol.api.MAX_CALLS", 2)

    async def test(served: Serving) -> None:
        await served.stream()
        inbox = Inbox()
        served.hub.subscribe("in", inbox)
        for _ in range(3):
            served.hub.publish(NatsMessage("$JS.API.STREAM.INFO.S", "in"), caller=CALLER)
        codes = [json.loads(one.payload).get("error", {}) for one in await inbox.until(3)]
        assert [one.get("err_code") for one in codes] == [10167, None, None]

    run(tmp_path, test)
