"""Publishes that end in time without an answer of the store say whether messages are stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest

from router.access.authorizer import Authorizer
from router.errors import NOTHING_STORED, BackendTimeoutError, OutcomeUnknownError
from router.model import TopicInfo, TopicName
from tests.unit.web.applications import Site

UNKNOWN = "It is unknown whether the messages are stored."
PIP64 = json.dumps({"messages": [{"value": "x"}]}).encode()
PULSAR = json.dumps({"messages": [{"payload": "x"}]}).encode()
FORM = b"message=x"
REQUESTS: list[tuple[str, bytes, dict[str, str]]] = [
    ("/events/t", b"x", {}),
    ("/events/t", b"x", {"Idempotency-Key": "k"}),
    ("/events/transaction/t", b"x", {}),
    ("/topics/public/default/t", PIP64, {}),
    ("/topics/public/default/t", PIP64, {"Idempotency-Key": "k"}),
    ("/topics/public/default/t/partitions/0", PULSAR, {}),
    ("/jetstream/publish/t", b"x", {}),
    ("/console/topics/t/publish", FORM, {"Content-Type": "application/x-www-form-urlencoded"}),
]
Fault = Callable[[Site, pytest.MonkeyPatch, BackendTimeoutError], None]


def in_the_append(site: Site, patch: pytest.MonkeyPatch, error: BackendTimeoutError) -> None:
    del patch
    site.backend.publishing = [error]


def in_a_look_at_the_topic(
    site: Site, patch: pytest.MonkeyPatch, error: BackendTimeoutError
) -> None:
    patch.setattr(site.backend, "partitions", failing(error))


def in_a_look_at_the_rights(
    site: Site, patch: pytest.MonkeyPatch, error: BackendTimeoutError
) -> None:
    del site
    patch.setattr(Authorizer, "authorize", failing(error))


def failing(error: BackendTimeoutError) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("fault", "error", "sentence"),
    [
        (in_the_append, OutcomeUnknownError.because("Kafka is slow."), UNKNOWN),
        (in_the_append, BackendTimeoutError("Kafka is slow."), NOTHING_STORED),
        (in_a_look_at_the_topic, BackendTimeoutError(), NOTHING_STORED),
        (in_a_look_at_the_rights, BackendTimeoutError(), NOTHING_STORED),
    ],
)
@pytest.mark.parametrize(("path", "body", "headers"), REQUESTS)
def test_a_timeout_says_whether_messages_are_stored(
    sites: Callable[..., Site],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: bytes,
    headers: dict[str, str],
    fault: Fault,
    error: BackendTimeoutError,
    sentence: str,
) -> None:
    site = sites(acl_enforce="true")
    site.backend.create_topic(TopicInfo(TopicName.parse("t")), 1)
    fault(site, monkeypatch, error)
    sent = {"Content-Type": "text/plain", "Accept": "application/json"} | headers
    answer = site.client.post(path, data=body, headers=sent)
    text = unquote(answer.text)
    # PIP 64 answers what became of each message.
    told = [one for one in (NOTHING_STORED, UNKNOWN) for _ in range(text.count(one))]
    assert told, (answer.status_code, text)
    assert set(told) == {sentence}
    if not path.startswith("/topics/public"):
        assert answer.status_code == 504, text
