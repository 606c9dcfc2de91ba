"""Polls with `ack=explicit` on every store: the law of what is acknowledged, over two workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from router.app import create_app
from router.backends import Start
from router.model import Subscription, TopicName
from tests.contract.conftest import WAIT, Opened

GROUP = "g"
WAIT_MS = round(WAIT * 1000)


@pytest.fixture(scope="module")
def apps(opened: Opened) -> Iterator[list[Flask]]:
    """Two workers of one node."""
    apps = [create_app(opened.settings, opened.backend, opened.node) for _ in range(2)]
    yield apps
    for app in apps:
        app.extensions["router.close"]()


@dataclass
class Model:
    """What is stored, what the client has acknowledged, and the answers that it has had.

    Answers are told by their token: what they held, and how many resets were before.
    """

    topic: TopicName
    stored: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    answers: dict[str, tuple[set[str], int]] = field(default_factory=dict)
    resets: int = 0

    def left(self) -> set[str]:
        return self.stored - self.acknowledged

    def presented(self, token: str) -> None:
        held, resets = self.answers.get(token, (set(), -1))
        if resets == self.resets:
            self.acknowledged |= held


class Client:
    """Publishes, and polls under one id on any of the workers."""

    def __init__(self, apps: list[Flask], topic: TopicName) -> None:
        self._apps = apps
        self._topic = topic.local
        self.requests = 0

    def _app(self) -> Flask:
        self.requests += 1
        return self._apps[self.requests % len(self._apps)]

    def publish(self, *values: str) -> None:
        body = "".join(f"{len(v)}.{len(v)}.{v}{v}" for v in values)
        answer = (
            self._app()
            .test_client()
            .post(f"/events/{self._topic}", data=body, content_type="application/cambria")
        )
        assert answer.status_code == 200, answer.text

    def ask(self, ack: str, more: str) -> TestResponse:
        path = f"/events/{self._topic}/{GROUP}/c?from=earliest&ack={ack}&{more}"
        return self._app().test_client().get(path)

    def poll(self, ack: str, more: str = "") -> tuple[list[str], str]:
        answer = self.ask(ack, more)
        assert answer.status_code == 200, answer.text
        return answer.get_json(), answer.headers["Ack-Token"]


actions = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4)),
        st.tuples(st.just("poll"), st.integers(1, 3)),
        st.tuples(st.just("present"), st.integers(0, 9)),
        st.tuples(st.just("finish"), st.integers(0, 9)),
        st.tuples(st.just("reset"), st.just(0)),
    ),
    min_size=2,
    max_size=9,
)


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(partitions=st.sampled_from([0, 3]), actions=actions)
def test_what_a_token_names_is_acknowledged_and_nothing_else(
    opened: Opened, apps: list[Flask], partitions: int, actions: list[tuple[str, int]]
) -> None:
    """Tokens are presented late, twice, out of order, to another worker, and across resets."""
    topic = opened.new_topic(partitions)
    client, model, token = Client(apps, topic), Model(topic), "explicit"
    client.poll("explicit", "timeout=0")

    def poll(ack: str, limit: int = 100) -> None:
        nonlocal token
        model.presented(ack)
        wait = WAIT_MS if model.left() else 0
        found, token = client.poll(ack, f"timeout={wait}&limit={limit}")
        assert set(found) <= model.left()
        assert bool(found) == bool(model.left())
        model.answers[token] = set(found), model.resets

    for action, number in [("publish", 3), *actions]:
        if action == "publish":
            values = [f"{len(model.stored) + at}" for at in range(number)]
            client.publish(*values)
            model.stored |= set(values)
        elif action == "poll":
            poll("explicit", number)
        elif action == "present" and model.answers:
            poll(list(model.answers)[number % len(model.answers)], 1 + number % 3)
        elif action == "finish" and model.answers:
            old = list(model.answers)[number % len(model.answers)]
            answer = client.ask(old, "limit=0")
            current = model.answers[old][1] == model.resets
            assert answer.status_code in ({200} if current else {200, 409}), answer.text
            model.presented(old)
        elif action == "reset" and opened.kind != "apache":
            # Apache Pulsar does not tell a position of before a reset from one of after.
            opened.backend.reset(Subscription(topic, GROUP), Start.EARLIEST, WAIT)
            model.acknowledged, model.resets = set(), model.resets + 1
    while model.left():
        poll(token)
    poll(token)


def test_token_from_before_a_reset_skips_no_message(opened: Opened, apps: list[Flask]) -> None:
    topic = opened.new_topic()
    client = Client(apps, topic)
    client.publish("1")
    client.publish("2")
    found, first = client.poll("explicit", f"limit=1&timeout={WAIT_MS}")
    assert found == ["1"]
    found, second = client.poll(first, f"timeout={WAIT_MS}")
    assert found == ["2"]
    opened.backend.reset(Subscription(topic, GROUP), Start.EARLIEST, WAIT)
    answer = client.ask(second, "limit=0")
    assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (409, 5005)
    assert "What was not acknowledged before is delivered again." in answer.get_json()["message"]
    assert client.poll(second, f"timeout={WAIT_MS}")[0] == ["1", "2"]


def test_token_acknowledges_a_part_of_a_batch(opened: Opened, apps: list[Flask]) -> None:
    topic = opened.new_topic()
    client = Client(apps, topic)
    client.publish(*"abcde")
    found, token = client.poll("explicit", f"limit=2&timeout={WAIT_MS}")
    taken = [*found]
    while found and len(taken) < 5:
        found, token = client.poll(token, f"limit=2&timeout={WAIT_MS}")
        taken += found
    assert taken == [*"abcde"]
    assert client.poll(token, "limit=2&timeout=100")[0] == []
