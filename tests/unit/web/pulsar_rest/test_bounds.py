"""Requests and answers of PIP 64 that are heavy: where they are read, and how much there may be."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from router.web.bodies.reader import LIGHT_MESSAGES
from tests.unit.web.applications import Site
from tests.unit.web.pulsar_rest.rest import Rest

Topics = Callable[..., tuple[Site, Rest]]


def post(rest: Rest, body: bytes, **headers: str) -> Any:
    kind = "application/json"
    return rest.client.post(rest.at, data=body, content_type=kind, headers=headers)


@pytest.mark.parametrize("heavy", [False, True])
def test_request_is_read_elsewhere_when_it_holds_much(topics: Topics, heavy: bool) -> None:
    site, rest = topics()
    used: list[str] = []

    def elsewhere(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        used.append(function.__name__)
        return function(*args, **kwargs)

    site.body_reader().offload = elsewhere
    count = LIGHT_MESSAGES + 1 if heavy else 10
    body = gzip.compress(json.dumps({"messages": [{"value": "x"}] * count}).encode())
    answer = post(rest, body, **{"Content-Encoding": "gzip"})
    assert len(answer.get_json()["messageIds"]) == count
    # All that goes through the messages one by one is done there.
    assert used == (["_loaded", "dialect_of", "read", "outgoing", "answer", "dumps"] * heavy)


def test_request_keeps_no_more_memory_than_its_messages_take(topics: Topics) -> None:
    """One that kept what it might have taken would have all others of the worker wait."""
    site, rest = topics()
    budget, held = site.body_reader()._budget, {}

    def elsewhere(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        held[function.__name__] = budget.used()
        return function(*args, **kwargs)

    site.body_reader().offload = elsewhere
    value = os.urandom(100_000).hex()
    body = gzip.compress(json.dumps({"messages": [{"value": value}]}).encode())
    assert post(rest, body, **{"Content-Encoding": "gzip"}).status_code == 200
    assert held["_loaded"] == budget.limit
    assert held["outgoing"] < 210_000
    assert budget.used() == 0


def test_request_of_too_many_arrays_is_refused_before_it_is_parsed(topics: Topics) -> None:
    _, rest = topics(publish_max_messages="10")
    fits = {"messages": [{"value": "[" * 100}]}
    assert post(rest, json.dumps(fits).encode()).status_code == 200
    bomb = {"messages": [{"value": "x", "more": [[]] * 200}]}
    answer = post(rest, json.dumps(bomb).encode())
    assert (answer.status_code, answer.get_json()["error_code"]) == (413, 41301)
    assert "200 arrays and objects" in answer.get_json()["message"]


def test_request_waits_for_memory_and_is_refused_without(topics: Topics) -> None:
    site, rest = topics(publish_max_in_flight="10k", publish_timeout="0s")
    budget = site.body_reader()._budget
    held = budget.try_reserve(10 << 10)
    assert held is not None
    answer = post(rest, b'{"messages":[{"value":"x"}]}')
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    held.release()
    assert budget.used() == 0


def test_answer_counts_as_unsent_until_it_is_out(topics: Topics) -> None:
    site, rest = topics()
    rest.produce({"value": "x"})
    unsent = site.subscriber().context.unsent
    path = f"{rest.at}/partitions/0/messages?timeout=0"
    answer = rest.client.get(path)
    assert unsent.used() > 0
    answer.close()
    assert unsent.used() == 0
    held = unsent.try_reserve(unsent.limit)
    assert held is not None
    refused = rest.client.get(path)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    held.release()
    assert rest.values() == ["x"]
