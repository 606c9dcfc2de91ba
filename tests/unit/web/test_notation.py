"""Answers to what cannot be served: in words and JSON, never in Python's notation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import pytest

from tests.unit.web.applications import Site
from tests.unit.web.test_parameters import CONSOLE, DMAAP, PIP64, SUBSCRIPTION
from tests.unit.web.unreadable import cases, tables

PYTHON: Final = re.compile(
    r"\bNone\b|\bTrue\b|\bFalse\b|\bb'|\bobject at 0x|<class|\\\\x[0-9a-f]{2}|<[A-Za-z]+\.\w+"
    r"|(?<![A-Za-z])'[^']*'|\bdict\b|\blist\(|\bstr\b|\bNoneType\b|Traceback"
)
STRANGE: Final[list[Any]] = [
    None, True, 1.5, -1, [], {}, [None], {"a": None}, "x'y", "\ud800", "a\x00b", "x" * 300, 10**30,
]  # fmt: skip
TOPIC: Final = "/topics/public/default/t"
FIELDS: Final = [
    "value",
    "key",
    "payload",
    "partition",
    "properties",
    "eventTime",
    "sequenceId",
    "deliverAt",
    "deliverAfterMs",
    "replicationClusters",
    "disableReplication",
]
STREAM: Final = f"{TOPIC}/messages?stream"


def bodies() -> Iterator[tuple[str, str]]:
    """Yield paths with bodies that are not as they should be."""
    for strange in STRANGE:
        yield TOPIC, json.dumps(strange)
        for field in FIELDS:
            yield TOPIC, json.dumps({"messages": [{"value": "v", field: strange}]})
        for schema in ("INT32", "BOOLEAN", "DATE", "bytes", "DOUBLE"):
            yield TOPIC, json.dumps({"schema_type": schema, "messages": [{"value": strange}]})
        for field in ("messages", "schema_type", "schema_version", "value_schema", "key_schema"):
            yield TOPIC, json.dumps({"messages": [{"value": "v"}], field: strange})
        record = {"type": "record", "name": strange, "fields": strange}
        for definition in ({"type": strange}, record):
            fields = {"schema_type": "AVRO", "value_schema": definition}
            yield TOPIC, json.dumps({"messages": [{"value": strange}], **fields})
        for field in ("name", "id", "start", "schema_type"):
            yield SUBSCRIPTION, json.dumps({field: strange})
        for field in ("type", "messageIds"):
            yield f"{SUBSCRIPTION}/cursor", json.dumps({"messageIds": [strange], field: strange})
        yield f"{SUBSCRIPTION}/cursor", json.dumps({"messageIds": [strange]})
        for field in ("topicName", "partitionCount", "replicationCount", "transactionEnabled"):
            yield "/topics/create", json.dumps({"topicName": "t", field: strange})
        yield "/apiKeys/create", json.dumps({"email": strange, "description": strange})
        yield "/events/t", json.dumps(strange)
        yield f"/events/{quote(json.dumps(strange), safe='')}", "a"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """An application with a topic and a consumer."""
    site = Site({})
    site.post("/events/t", "a")
    assert site.client.post(SUBSCRIPTION, data='{"id":"c"}').status_code == 200
    yield site
    site.close()


def test_refused_parameters_are_told_in_words(site: Site) -> None:
    for method, _, urls in cases(tables(site.app, DMAAP | PIP64 | CONSOLE)):
        for url in urls:
            told_in_words(site.client.open(url, method=method).text, url)


def test_refused_bodies_are_told_in_words(site: Site) -> None:
    for path, body in bodies():
        for kind in ("application/json", "text/plain"):
            answer = site.client.post(path, data=body, content_type=kind)
            assert answer.status_code < 500, (path, body, answer.text)
            if answer.status_code >= 400:
                told_in_words(answer.text, f"{path} {body}")


def test_refused_encodings_are_told_in_words(site: Site) -> None:
    for headers in (
        {"Content-Encoding": "br'"},
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "deflate"},
        {"Transfer-Encoding": "gzip'"},
        {"Accept": "x'/"},
        {"Idempotency-Key": "x" * 300},
        {"Last-Event-ID": "x'y"},
    ):
        for method, path in (
            ("POST", "/events/t"),
            ("POST", TOPIC),
            ("GET", STREAM),
        ):
            answer = site.client.open(path, method=method, data="x'y", headers=headers)
            if answer.status_code >= 400:
                told_in_words(answer.text, f"{path} {headers}")


def told_in_words(text: str, asked: str) -> None:
    found = PYTHON.search(json.dumps(json.loads(text), ensure_ascii=False) if text else "")
    assert found is None, (asked, text)
