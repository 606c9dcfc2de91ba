"""The pages of streams and consumers, on streams that answer from a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from router.clocks.steps import Steps
from router.model import TopicInfo, TopicName
from router.services.jetstream import JetStreamRequest, Watch, topics, unwatched
from router.wire.nats.jetstream.config import ConsumerConfig, StreamConfig
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.replies import (
    ApiReply,
    ConsumerInfo,
    ListPage,
    PagedReply,
    Purged,
    ReplyResult,
    SequencePair,
    StreamInfo,
    StreamInfoPage,
    StreamState,
    Success,
)
from router.wire.nats.message import NatsMessage
from tests.unit.web.applications import Site, header
from tests.unit.web.console.signing import BROWSER, JSON, PASSWORD, users_file

NAME, PAGE = "a%2Eb", "/console/streams/a%252Eb"

STREAM = StreamInfo(
    StreamConfig(name=NAME, subjects=("<b>.*",), metadata={"k": "v"}),
    created=0,
    state=StreamState(messages=2, bytes=2048, first_seq=1, last_seq=3, consumer_count=1),
    ts=0,
)
CONSUMER = ConsumerInfo(
    NAME,
    "wor<i>ker",
    0,
    ConsumerConfig(durable_name="worker"),
    SequencePair(2, 3),
    SequencePair(1, 1),
    0,
    num_pending=7,
)
ANSWERS: dict[str, ReplyResult | JetStreamError] = {
    "STREAM.LIST": ListPage("streams", [STREAM], PagedReply(1, 0, 256)),
    f"STREAM.INFO.{NAME}": StreamInfoPage(STREAM),
    f"STREAM.PURGE.{NAME}": Purged(2),
    f"STREAM.DELETE.{NAME}": Success(),
    f"CONSUMER.LIST.{NAME}": ListPage("consumers", [CONSUMER], PagedReply(1, 0, 256)),
    f"CONSUMER.INFO.{NAME}.worker": CONSUMER,
    f"CONSUMER.DELETE.{NAME}.worker": Success(),
    "STREAM.INFO.absent": error(ErrorCode.STREAM_NOT_FOUND),
}


class Script:
    """Streams that answer what is written, and keep what they were asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def request(
        self, asked: JetStreamRequest, watch: Watch = unwatched
    ) -> Steps[list[NatsMessage]]:
        del watch
        yield from ()
        subject = asked.message.subject.removeprefix("$JS.API.")
        self.calls.append((subject, orjson.loads(asked.message.payload)))
        found = ANSWERS[subject]
        if isinstance(found, JetStreamError):
            reply = ApiReply("x", error=found)
        else:
            reply = ApiReply("x", found)
        return [NatsMessage("", payload=reply.to_bytes())]

    def stop(self) -> None:
        """Do nothing."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script()
    monkeypatch.setattr(topics.TopicStreams, "request", lambda _, *a, **k: made.request(*a, **k))
    return made


@pytest.fixture
def streams(script: Script, site: Site) -> Site:
    del script
    site.backend.create_topic(TopicInfo(TopicName.parse("a.b")), 1)
    return site


def twin(site: Site, path: str) -> dict[str, Any]:
    answer = site.client.get(path, headers=JSON)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def test_streams_are_listed_with_what_they_hold(streams: Site) -> None:
    row = twin(streams, "/console/streams")["streams"][0]
    assert (row["name"], row["subjects"], row["messages"]) == (NAME, "<b>.*", 2)
    page = streams.client.get("/console/streams", headers=BROWSER).text
    assert f'href="{PAGE}"' in page
    assert "&lt;b&gt;.*" in page
    assert "2.0 KiB" in page
    assert twin(streams, "/console/streams?q=B%3E.")["found"] == 1
    assert twin(streams, "/console/streams?q=other")["streams"] == []


def test_a_page_of_streams_asks_for_no_other(streams: Site, script: Script) -> None:
    assert twin(streams, "/console/streams?page=3")["found"] == 1
    assert script.calls == [("STREAM.LIST", {"offset": 100})]


def test_a_stream_is_shown_with_its_consumers(streams: Site) -> None:
    data = twin(streams, PAGE)
    assert data["topic"] == "a.b"
    assert data["config"]["subjects"] == "<b>.*"
    assert data["config"]["metadata"] == "k = v"
    assert data["state"]["last_seq"] == "3"
    assert "last_ts" not in data["state"]  # the stream says no time
    assert data["consumers"][0] == {
        "name": "wor<i>ker",
        "kind": "pull",
        "durable": True,
        "delivered": 3,
        "acknowledged": 1,
        "pending": 7,
        "unacknowledged": 0,
        "waiting": 0,
    }
    page = streams.client.get(PAGE, headers=BROWSER).text
    assert "wor&lt;i&gt;ker" in page
    assert "router streams info a%2Eb" in page
    consumer = twin(streams, f"{PAGE}/consumers/worker")
    assert consumer["state"]["delivered.stream_seq"] == "3"
    assert consumer["state"]["num_pending"] == "7"


@pytest.mark.parametrize(
    ("path", "name", "subject", "back"),
    [
        ("/purge", NAME, f"STREAM.PURGE.{NAME}", PAGE),
        ("/delete", NAME, f"STREAM.DELETE.{NAME}", "/console/streams"),
        ("/consumers/worker/delete", "worker", f"CONSUMER.DELETE.{NAME}.worker", PAGE),
    ],
)
def test_an_action_needs_the_name_once_more(
    streams: Site, script: Script, path: str, name: str, subject: str, back: str
) -> None:
    wrong = streams.client.post(PAGE + path, data={"confirm": "x"}, headers=BROWSER)
    assert wrong.status_code == 400
    assert script.calls == []
    done = streams.client.post(PAGE + path, data={"confirm": name}, headers=BROWSER)
    assert (done.status_code, done.headers["Location"]) == (303, back)
    assert script.calls == [(subject, {})]


def test_a_purge_may_be_of_some_subjects(streams: Site, script: Script) -> None:
    form = {"confirm": NAME, "filter": " a.* "}
    answer = streams.client.post(f"{PAGE}/purge", data=form, headers=JSON)
    assert answer.get_json()["purged"] == 2
    assert script.calls == [(f"STREAM.PURGE.{NAME}", {"filter": "a.*"})]
    assert answer.get_json()["commands"] == ["router streams purge a%2Eb --filter 'a.*'"]


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (1_500, "1.5 s"),
        (100_000, "100 s"),
        (120_000, "2 min"),
        (86_400_000, "1 d"),
        (250, "0.25 s"),
    ],
)
def test_durations_are_as_exact_as_they_are_configured(
    streams: Site, monkeypatch: pytest.MonkeyPatch, milliseconds: int, shown: str
) -> None:
    config = ConsumerConfig(durable_name="worker", ack_wait=milliseconds * 1_000_000)
    monkeypatch.setitem(ANSWERS, f"CONSUMER.INFO.{NAME}.worker", replace(CONSUMER, config=config))
    assert twin(streams, f"{PAGE}/consumers/worker")["config"]["ack_wait"] == shown


def test_what_is_not_there_is_a_page_that_says_so(streams: Site) -> None:
    answer = streams.client.get("/console/streams/absent", headers=BROWSER)
    assert answer.status_code == 404
    assert "stream not found" in answer.text
    assert streams.client.get("/console/streams/a%20b", headers=BROWSER).status_code == 400


def test_a_stream_may_have_the_name_of_its_topic(streams: Site) -> None:
    for path in ("/console/streams/a.b", "/console/streams/a%2Eb"):
        assert twin(streams, path)["stream"] == NAME


def test_who_may_not_manage_the_topic_changes_nothing(
    script: Script, sites: Callable[..., Site], tmp_path: Path
) -> None:
    users = users_file(tmp_path, anna=PASSWORD, ops=PASSWORD)
    (tmp_path / "permissions").write_text("ops * publish subscribe manage\nanna * publish\n")
    site = sites(auth_users=str(users), auth_permissions=str(tmp_path / "permissions"))
    anna, ops = ({"Authorization": header(name, PASSWORD)} for name in ("anna", "ops"))
    site.client.post("/topics/create", json={"topicName": "a.b"}, headers=ops)

    assert site.client.get("/console/streams", headers=JSON).status_code == 401
    assert site.client.get(PAGE, headers=JSON | ops).get_json()["no_change"] == ""
    shown = site.client.get(PAGE, headers=BROWSER | anna)
    assert shown.status_code == 200
    assert "You may not manage this stream" in shown.text
    assert "Purge stream" not in shown.text
    script.calls.clear()
    for path, name in (("purge", NAME), ("delete", NAME), ("consumers/worker/delete", "worker")):
        form = {"confirm": name}
        refused = site.client.post(f"{PAGE}/{path}", data=form, headers=JSON | anna)
        assert refused.status_code == 403
    assert script.calls == []


def test_streams_can_be_turned_off(script: Script, sites: Callable[..., Site]) -> None:
    site = sites(jetstream_enabled="no")
    assert "jetstream.enabled" in twin(site, "/console/streams")["note"]
    assert site.client.get(PAGE, headers=BROWSER).status_code >= 400
    assert script.calls == []
