"""What the front records of administrative changes: which requests, and what of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from flask import Flask, Request
from werkzeug.test import EnvironBuilder

from router.errors import BackendUnavailableError
from router.web.audit import DATA, READING, Audit, is_change
from router.wire.nats.subjects import api_change
from tests.unit.web.applications import Site

UNRECORDED = {
    "admin.drop_consumers",
    "console.publish",
    "console.replay_batch",
    "console.send_again",
    "console.sign_in",
    "console.sign_out",
    "console.theme",
    "pulsar_admin.analyze_backlog",
    "pulsar_admin.backlog_size",
    "pulsar_admin.compatibility",
    "pulsar_admin.version_of",
}


class Records:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.changes: list[dict[str, Any]] = []
        self.fails = False

    def record(
        self, action: str, target: str, user: str, address: str, details: Mapping[str, Any]
    ) -> None:
        if self.fails:
            raise BackendUnavailableError
        made = {"action": action, "target": target, "user": user, "address": address}
        self.changes.append(made | {"details": dict(details)})


@pytest.fixture
def records(site: Site) -> Records:
    made = Records()
    site.app.audit = Audit(made)  # type: ignore[attr-defined]
    return made


def test_every_route_that_changes_more_than_messages_is_recorded(everything: Flask) -> None:
    left_out = set()
    for rule in everything.url_map.iter_rules():
        for method in (rule.methods or set()) - READING:
            request = Request(EnvironBuilder(method=method).get_environ())
            request.url_rule = rule
            request.view_args = {"subject": "STREAM.DELETE.S"}
            if not is_change(request, 200):
                left_out.add(rule.endpoint)
    left_out = {one for one in left_out if one.partition(".")[0] not in DATA}
    assert left_out == UNRECORDED


@pytest.mark.parametrize(
    ("subject", "changes"),
    [
        ("STREAM.DELETE.S", True),
        ("STREAM.MSG.DELETE.S", True),
        ("CONSUMER.DURABLE.CREATE.S.c", True),
        ("STREAM.INFO.DELETE", False),
        ("CONSUMER.NAMES.PURGE", False),
        ("STREAM.MSG.GET.RESET", False),
        ("INFO", False),
    ],
)
def test_stream_that_is_named_as_a_call_is_read_without_a_record(
    everything: Flask, subject: str, changes: bool
) -> None:
    (rule,) = (one for one in everything.url_map.iter_rules() if one.endpoint == "jetstream.call")
    request = Request(EnvironBuilder(method="POST").get_environ())
    request.url_rule, request.view_args = rule, {"subject": subject}
    assert is_change(request, 200) is changes


def test_change_is_recorded_with_who_and_from_where(site: Site, records: Records) -> None:
    new = {"topicName": "orders", "partitionCount": 3, "topicDescription": "of the shop"}
    assert site.client.post("/topics/create", json=new).status_code == 200
    assert site.client.delete("/topics/orders").status_code == 200
    details = {"topicName": "orders", "partitionCount": 3}
    by = {"user": "", "address": "127.0.0.1"}
    assert records.changes == [
        {"action": "create-topic", "target": "orders", **by, "details": details},
        {"action": "delete-topic", "target": "orders", **by, "details": {}},
    ]


@pytest.mark.parametrize(
    ("subject", "change"),
    [
        ("STREAM.CREATE.S", ("create-stream", "S")),
        ("STREAM.MSG.DELETE.S", ("delete-message", "S")),
        ("CONSUMER.CREATE.S.c.orders.new", ("create-consumer", "S/c")),
        ("CONSUMER.DURABLE.CREATE.S.c", ("create-consumer", "S/c")),
    ],
)
def test_calls_of_jetstream_are_named_as_other_changes(
    subject: str, change: tuple[str, str]
) -> None:
    assert api_change(subject) == change


def test_forms_are_recorded_without_what_is_no_name(site: Site, records: Records) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    form = {"confirm": "t", "csrf_token": "secret", "password": "secret"}
    assert site.client.post("/console/topics/t/delete", data=form).status_code == 303
    key = {"email": "a@b.c", "description": "secret"}
    assert site.client.post("/apiKeys/create", json=key).status_code == 200
    assert [one["action"] for one in records.changes] == [
        "create-topic",
        "delete-topic",
        "create-key",
    ]
    assert "secret" not in str(records.changes)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/topics/absent"),
        ("GET", "/topics/t"),
        ("POST", "/events/t"),
        ("POST", "/topics/t/groups/g/reset?to=earliest&preview"),
    ],
)
def test_what_changes_nothing_is_not_recorded(
    site: Site, records: Records, method: str, path: str
) -> None:
    site.client.post("/events/t", data="x")
    site.client.get("/events/t/g/c?timeout=0")
    site.client.open(path, method=method, data="y" if method == "POST" else None)
    assert not records.changes


def test_change_stands_though_it_cannot_be_recorded(site: Site, records: Records) -> None:
    records.fails = True
    assert site.client.post("/topics/create", json={"topicName": "t"}).status_code == 200


def test_page_is_for_administrators_and_says_what_a_foreign_store_lacks(site: Site) -> None:
    page = site.client.get("/console/audit?q=x", headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert "the node" in page.text
