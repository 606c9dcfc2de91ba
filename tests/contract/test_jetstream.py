"""JetStream over HTTP on every store: what each can do, and how it says what it cannot."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from router.app import create_app
from router.settings import load
from tests.contract.conftest import KAFKA, Opened, open_any

PREFIX = "io.nats.jetstream.api.v1."
WITHOUT_CONSUMERS = "JetStreamNotEnabled"
URLS = {"memory": "memory", "embedded": "embedded", "pulsar": "pulsar://x", "kafka": "kafka://x"}


class Site:
    """An application over a store."""

    def __init__(self, opened: Opened) -> None:
        values = {"data.dir": opened.settings.text("data.dir"), "backend.url": URLS[opened.kind]}
        self.kind = opened.kind
        self.opened = opened
        self.app = create_app(load(None, {}, values), opened.backend, opened.node)
        self.client = self.app.test_client()

    def call(self, subject: str, body: object = None) -> Any:
        """Return the answer to a call of the API."""
        text = "" if body is None else json.dumps(body)
        answer = self.client.post(f"/jetstream/api/{subject}", data=text)
        return answer.get_json()

    def publish(self, subject: str, body: bytes | str, **headers: str) -> tuple[int, str]:
        """Publish; return status and line."""
        answer = self.client.post(f"/jetstream/publish/{subject}", data=body, headers=headers)
        return answer.status_code, answer.text

    def stream(self) -> str:
        """Make a stream, and return its name."""
        name = self.opened.new_name().local
        made = self.call(f"STREAM.CREATE.{name}", {"name": name})
        assert made["type"] == f"{PREFIX}stream_create", made
        assert "error" not in made, made
        return name


@pytest.fixture(scope="module", params=["memory", "embedded", "pulsar", KAFKA])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    with ExitStack() as stack:
        found = Site(open_any(request, tmp_path_factory.mktemp("data"), stack))
        stack.callback(found.app.extensions["router.close"])
        yield found


def test_a_stream_is_made_listed_shown_and_deleted(site: Site) -> None:
    name = site.stream()
    assert name in site.call("STREAM.LIST")["streams"]
    assert name in site.call("STREAM.NAMES", {"subject": name})["streams"]
    found = site.call(f"STREAM.INFO.{name}")
    assert (found["config"]["name"], found["config"]["subjects"]) == (name, [name])
    assert found["state"]["messages"] == 0
    assert site.call("INFO")["streams"] >= 1
    assert site.call(f"STREAM.DELETE.{name}")["success"]
    gone = site.call(f"STREAM.INFO.{name}")
    assert (gone["error"]["code"], gone["config"]["name"]) == (10059, "")
    assert site.call(f"STREAM.DELETE.{name}")["error"]["code"] == 10059


def test_a_message_is_stored_with_its_headers_and_has_the_next_sequence(site: Site) -> None:
    name = site.stream()
    numbered = site.kind != "pulsar"
    for number in range(1, 4):
        status, line = site.publish(name, f"value {number}", **{"Nats-Colour": "blue"})
        assert (status, line.partition("&")[0]) == (200, f"+OK stream={name}")
        assert line.endswith(f"&sequence={number}") == numbered
    assert site.call(f"STREAM.INFO.{name}")["state"]["messages"] == 3
    got = site.call(f"STREAM.MSG.GET.{name}", {"seq": 2})
    if not numbered:
        assert got["error"]["kind"] == WITHOUT_CONSUMERS
        return
    message = got["message"]
    assert (message["subject"], message["seq"]) == (name, 2)
    assert b64decode(message["data"]) == b"value 2"
    assert b"Nats-Colour: blue" in b64decode(message["hdrs"])
    assert site.call(f"STREAM.MSG.GET.{name}", {"last_by_subj": name})["message"]["seq"] == 3
    for absent in ({"seq": 4}, {"last_by_subj": "other"}):
        assert site.call(f"STREAM.MSG.GET.{name}", absent)["error"]["code"] == 10037
    state = site.call(f"STREAM.INFO.{name}")["state"]
    assert (state["first_seq"], state["last_seq"]) == (1, 3)


def test_a_repeat_by_its_id_is_stored_once(site: Site) -> None:
    name = site.stream()
    lines = {site.publish(name, "once", **{"Nats-Msg-Id": name})[1] for _ in range(2)}
    assert {line.removesuffix("&duplicate=true") for line in lines} == {min(lines, key=len)}
    if site.kind != "kafka":  # whose markers of transactions have numbers too
        assert site.call(f"STREAM.INFO.{name}")["state"]["messages"] == 1


def test_other_dialects_read_what_is_published(site: Site) -> None:
    name = site.stream()
    site.publish(name, "for all")
    answer = site.client.get(f"/events/{name}/g/c?from=earliest&timeout=5000")
    assert answer.get_json() == ["for all"]


def test_a_subject_that_no_stream_has_is_refused(site: Site) -> None:
    assert site.publish(f"absent-{site.opened.new_name().local}", "x")[0] == 404
    name = site.stream()
    status, line = site.publish(name, "x", **{"Nats-Expected-Stream": "other"})
    assert (status, line[:4]) == (400, "-ERR")
    assert "code=10060" in line


@pytest.mark.parametrize(
    ("subject", "body"),
    [
        ("STREAM.PURGE.{}", None),
        ("STREAM.MSG.DELETE.{}", {"seq": 1}),
        ("CONSUMER.LIST.{}", None),
        ("CONSUMER.CREATE.{}.c", {"stream_name": "", "config": {"durable_name": "c"}}),
    ],
)
def test_a_store_says_what_it_cannot_do_in_the_type(site: Site, subject: str, body: object) -> None:
    found = site.call(subject.format(site.stream()), body)
    assert found["type"].startswith(PREFIX + subject.partition(".")[0].lower())
    error = found.get("error", {"kind": "", "message": ""})
    if site.kind == "embedded":
        assert error["kind"] != WITHOUT_CONSUMERS
    else:
        assert error["kind"] == WITHOUT_CONSUMERS
        assert site.kind in error["message"]


def test_fetches_and_conditions_need_the_node_s_broker(site: Site) -> None:
    name = site.stream()
    fetched = site.client.post(f"/jetstream/fetch/{name}/c").get_json()
    assert fetched["messages"] == []
    condition = {"Nats-Expected-Last-Sequence": "7"}
    status, line = site.publish(name, "x", **condition)
    if site.kind == "embedded":
        assert fetched["error"]["code"] == 10014
        assert (status, "code=10071" in line) == (400, True)
    else:
        assert fetched["error"]["kind"] == WITHOUT_CONSUMERS
        assert (status, "code=10076" in line) == (503, True)


def test_a_configuration_that_a_topic_cannot_have_is_refused(site: Site) -> None:
    for more in ({"subjects": ["a.*"]}, {"retention": "workqueue"}, {"max_msgs": 5}):
        name = site.opened.new_name().local
        found = site.call(f"STREAM.CREATE.{name}", {"name": name, **more})
        if site.kind == "embedded":
            assert "error" not in found
            assert site.call(f"STREAM.DELETE.{name}")["success"]
        else:
            assert found["error"]["code"] == 10052, more
            assert name not in site.call("STREAM.LIST")["streams"]


@pytest.mark.parametrize(
    "subject", ["STREAM.LEADER.STEPDOWN.{}", "CONSUMER.PEER.REMOVE.{}.c", "META.RESCUE"]
)
def test_what_only_a_cluster_serves_is_refused_alike_by_each_store(
    site: Site, subject: str
) -> None:
    found = site.call(subject.format("S"), {"peer": "x"})
    assert found["type"] in {
        f"{PREFIX}{name}"
        for name in ("stream_leader_stepdown", "consumer_remove_peer", "meta_rescue")
    }
    assert found["error"]["code"] == 10010


def test_a_time_that_is_too_short_and_a_bad_name_are_bad_requests(site: Site) -> None:
    name = site.opened.new_name().local
    for config in (
        {"name": name, "max_age": 31_536_000},
        {"name": "a|b"},
    ):
        found = site.call(f"STREAM.CREATE.{config['name']}", config)
        assert (found["error"]["kind"], found["error"]["code"]) == ("JetStreamBadRequest", 10052)
    assert name not in site.call("STREAM.LIST")["streams"]


@pytest.mark.parametrize("word", ["ack", "nak", "term", "in-progress"])
def test_acknowledgements_need_the_node_s_broker(site: Site, word: str) -> None:
    token = f"$JS.ACK.{site.stream()}.c.1.1.1.1700000000000000000.0"
    reply = site.client.post(f"/jetstream/{word}", data=token)
    if site.kind == "embedded":
        assert (reply.status_code, "done=0" in reply.text) == (404, True)
    else:
        assert (reply.status_code, "code=10076" in reply.text) == (503, True)
