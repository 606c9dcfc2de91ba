"""The page of one message: its forms, what marks it, and sending it again."""

from __future__ import annotations

import gzip
import time
import tomllib
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from router.backends import Batch
from router.errors import BackendUnavailableError
from router.model import Message, Schema, SchemaType, TopicInfo, TopicName, TopicStats
from router.services.dead_letters import tracing
from router.services.dead_letters.tracing import DeadLetterTracer, TraceBounds
from router.services.message_history import MessageAction, MessageHistory
from router.services.scan import ScanBounds
from router.web.console import message_story
from router.web.console.message_page import TRACES
from tests.unit.web.applications import HASHES, Site, header
from tests.unit.web.console.test_publish import ORDER

TOPIC = TopicName.parse("t")
PAGE = "/console/topics/t/messages"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a first look take as long as a busy machine needs for it."""
    monkeypatch.setitem(TRACES, "quick", replace(TRACES["quick"], seconds=10.0))


def store(site: Site, *messages: Message) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    site.backend.publish(Batch(TOPIC, -1, list(messages)), 5)


def listed(site: Site) -> list[dict[str, Any]]:
    found = site.client.get("/console/topics/t?tab=messages&format=json").get_json()
    messages: list[dict[str, Any]] = found["messages"]
    return messages


def page(site: Site, number: int = 0, query: str = "") -> dict[str, Any]:
    answer = site.client.get(f"{PAGE}/{listed(site)[number]['id']}?format=json&{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


@pytest.mark.parametrize(
    ("value", "form", "shown"),
    [
        (b'{"a":1}', "json", '{"a":1}'),
        (b"text", "text", "text"),
        (b"\xff\x00", "hex", "00000000  ff 00"),
        (gzip.compress(b'{"a":1}', mtime=0), "json", '{"a":1}'),
        (b"\x81\xa1a\xcd\x01\x00", "messagepack", '{\n  "a": 256'),
        (gzip.compress(b"\x81\xa1a\xcd\x01\x00", mtime=0), "messagepack", '{\n  "a": 256'),
    ],
)
def test_value_has_the_form_that_suits_it(site: Site, value: bytes, form: str, shown: str) -> None:
    store(site, Message(value))
    found = page(site)
    assert (found["as"], found["value"][: len(shown)]) == (form, shown)


def test_value_of_a_binary_schema_is_read_by_it_even_if_it_is_text(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    version = site.backend.schemas.put(TOPIC, Schema(SchemaType.AVRO, ORDER), 5)
    store(site, Message(b"\x08", schema_version=version), Message(b"\x08"))
    found = page(site)
    assert (found["as"], found["value"]) == ("schema", '{"id": 4}')
    assert page(site, 1)["as"] == "text"  # its publisher named no schema


def test_value_has_the_form_that_is_requested(site: Site) -> None:
    store(site, Message(b'{"a":1}'))
    assert page(site, query="as=base64")["value"] == "eyJhIjoxfQ=="
    assert page(site, query="as=hex")["value"].startswith("00000000  7b 22")
    assert page(site, query="as=json")["tree"]["children"][0]["kind"] == "number"


def test_tombstone_empty_value_and_empty_text_are_three(site: Site) -> None:
    store(site, Message(b"", b"k", null=True), Message(b""), Message(b'""'))
    marks = ("tombstone", "A value of 0 bytes", 'class="value"')
    for number, mark in enumerate(marks):
        address = f"{PAGE}/{listed(site)[number]['id']}?format=html"
        text = site.client.get(address).text
        assert [one for one in marks if f"{one}" in text.partition("Edit and send")[0]] == [mark]


def test_long_value_is_whole_on_its_page_and_as_a_file(site: Site) -> None:
    value = b"x" * 50_000
    store(site, Message(value))
    assert listed(site)[0]["left_out"] == 30_000
    assert page(site)["value"] == value.decode()
    file = site.client.get(f"{PAGE}/{listed(site)[0]['id']}/value")
    assert file.data == value
    assert file.headers["Content-Disposition"].startswith('attachment; filename="t-')
    assert file.headers["X-Content-Type-Options"] == "nosniff"


def test_markup_of_a_message_is_text(site: Site) -> None:
    store(site, Message(b"<b>", b"<i>", {"<u>": "<s>"}))
    text = site.client.get(f"{PAGE}/{listed(site)[0]['id']}?format=html").text
    assert not [one for one in ("<b>", "<i>", "<u>", "<s>") if one in text]
    assert all(one in unescape(text) for one in ("<b>", "<i>", "<u>", "<s>"))


def test_headers_of_the_router_are_no_headers_of_the_client(site: Site) -> None:
    store(site, Message(b"a", None, {"a": "1", "Nats-Subject": "t.x"}))
    found = page(site)
    assert (found["headers"], found["notes"]) == ([["a", "1"]], {"NATS subject": "t.x"})


def test_groups_say_where_they_stand(site: Site) -> None:
    store(site, Message(b"a"), Message(b"b"))
    assert site.client.get("/events/t/g/1?from=earliest&limit=1").get_json() == ["a"]
    site.client.get("/events/t/g/1?timeout=0&limit=1")
    states = [page(site, number)["groups"][0]["state"] for number in range(2)]
    assert states[0] == "acknowledged"


def bury(site: Site, position: str, dead: str = "t.dlq", **more: str) -> None:
    """Store a dead letter of a message of the topic."""
    notes = {"router-topic": "t", "router-partition": "0", "router-error": "no JSON", **more}
    dead_letter = Message(b"a", None, notes | {"router-position": position})
    name = TopicName.parse(dead)
    site.client.post("/topics/create", json={"topicName": dead})
    site.backend.publish(Batch(name, -1, [dead_letter]), 5)


def test_message_says_which_dead_letters_it_has_and_what_became_of_them(site: Site) -> None:
    store(site, Message(b"a"), Message(b"b"))
    assert page(site)["story"] == {
        "dead_letters": [],
        "searched": [],
        "unsearched": [],
        "whole": True,
        "actions": [],
        "since": None,
    }
    ledger, entry, *_ = listed(site)[0]["id"].split(":")
    bury(site, f"{ledger}:{entry}:0", **{"router-pipeline": "p"})
    bury(site, f"{ledger}:{entry}:1")
    story = page(site)["story"]
    (dead_letter,) = story["dead_letters"]
    assert (dead_letter["topic"], dead_letter["pipeline"], dead_letter["reason"]) == (
        "t.dlq",
        "p",
        "no JSON",
    )
    assert (dead_letter["state"], story["searched"], story["whole"]) == ("waiting", ["t.dlq"], True)
    link = f"/console/topics/t.dlq/messages/{dead_letter['id']}"
    text = site.client.get(f"{PAGE}/{listed(site)[0]['id']}?format=html").text
    assert f'href="{link}"' in unescape(text).replace("%3A", ":")
    assert site.client.get(link).status_code == 200
    form = {"which": "selected", f"letter-{dead_letter['id']}": "on"}
    site.client.post("/console/dead-letters/t.dlq/discard?format=json", data=form)
    # This store remembers nothing, so that it is not claimed which of both it was.
    assert page(site)["story"]["dead_letters"][0]["state"] == "requeued or discarded"
    text = site.client.get(f"{PAGE}/{listed(site)[0]['id']}?format=html").text
    assert "This store does not remember requeues and replays." in text


@pytest.mark.parametrize("place", ["-1", "-1:0", "0:-1"])
def test_dead_letter_of_a_group_is_found_in_the_topic_of_its_name(site: Site, place: str) -> None:
    store(site, Message(b"a"))
    assert site.client.get("/events/t/g/1?from=earliest&limit=1").get_json() == ["a"]
    ledger, entry, *_ = listed(site)[0]["id"].split(":")
    site.client.post("/topics/create", json={"topicName": "t-g-DLQ"})
    notes = {"REAL_TOPIC": str(TOPIC), "REAL_SUBSCRIPTION": "g"}
    dead_letter = Message(b"a", None, notes | {"ORIGIN_MESSAGE_ID": f"{ledger}:{entry}:{place}"})
    site.backend.publish(Batch(TopicName.parse("t-g-DLQ"), -1, [dead_letter]), 5)
    (found,) = page(site)["story"]["dead_letters"]
    assert (found["topic"], found["group"]) == ("t-g-DLQ", "g")
    text = site.client.get(f"{PAGE}/{listed(site)[0]['id']}?format=html").text
    assert "dead letter, waiting" in text
    dead_letter_page = f"/console/topics/t-g-DLQ/messages/{found['id']}?format=html"
    link = f"/console/topics/t/messages/{ledger}:{entry}:0"
    assert f'href="{link}' in site.client.get(dead_letter_page).text.replace("%3A", ":")


def test_dead_letter_of_a_partition_is_found_as_clients_in_cpp_write_it(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t", "partitionCount": 2})
    site.poll("/events/t/g/1")
    dead = "t-partition-1-g-DLQ"
    site.client.post("/topics/create", json={"topicName": dead})
    site.backend.publish(Batch(TOPIC, 1, [Message(b"a")]), 5)
    ledger, entry, *_ = listed(site)[0]["id"].split(":")
    notes = {
        "REAL_TOPIC": f"{TOPIC}-partition-1",
        "ORIGIN_MESSAGE_ID": f"({ledger},{entry},1,-1)",
    }
    site.backend.publish(Batch(TopicName.parse(dead), -1, [Message(b"a", None, notes)]), 5)
    (found,) = page(site)["story"]["dead_letters"]
    assert (found["topic"], found["group"], found["reason"]) == (dead, "g", "")


def test_dead_letters_are_for_who_may_read_them(sites: Callable[..., Site], tmp_path: Any) -> None:
    users, rules = tmp_path / "users", tmp_path / "permissions"
    users.write_text("".join(f"{name}:{HASHES['argon2']}\n" for name in ("anna", "bert", "carl")))
    rules.write_text("anna t subscribe\nbert t* subscribe\ncarl t* browse\n")
    site = sites(auth_users=str(users), auth_permissions=str(rules))
    for name in ("t", "t.dlq"):
        site.backend.create_topic(TopicInfo(TopicName.parse(name), 0), 5)
    site.backend.publish(Batch(TOPIC, -1, [Message(b"a")]), 5)
    bert = {"Authorization": header("bert", "secret")}
    listing = site.client.get("/console/topics/t?tab=messages&format=json", headers=bert)
    (message,) = listing.get_json()["messages"]
    notes = {
        "router-topic": "t",
        "router-partition": "0",
        "router-position": message["place"].rpartition(":")[0],
    }
    dead_letter = Message(b"a", None, notes)
    site.backend.publish(Batch(TopicName.parse("t.dlq"), -1, [dead_letter]), 5)

    def story(user: str) -> Any:
        known = {"Authorization": header(user, "secret")}
        found = site.client.get(f"{PAGE}/{message['id']}?format=json", headers=known)
        return found.get_json()["story"]

    assert [one["topic"] for one in story("bert")["dead_letters"]] == ["t.dlq"]
    assert (story("anna")["dead_letters"], story("anna")["searched"]) == ([], [])
    assert story("carl") is None


def test_search_for_dead_letters_that_ends_early_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(site, Message(b"a"))
    monkeypatch.setitem(TRACES, "quick", TraceBounds(2, 5.0))
    monkeypatch.setattr(tracing, "STEP_BOUNDS", ScanBounds(1, 1_000_000, 5.0))
    for _ in range(4):
        bury(site, "9:9")
    story = page(site)["story"]
    assert (story["dead_letters"], story["unsearched"], story["whole"]) == ([], ["t.dlq"], False)
    address = f"{PAGE}/{listed(site)[0]['id']}"
    text = site.client.get(f"{address}?format=html").text
    assert "Not all messages of t.dlq were searched" in text
    assert "?letters=long&amp;as=text" in text
    longer = site.client.get(f"{address}?letters=long&format=json").get_json()["story"]
    assert (longer["unsearched"], longer["whole"]) == ([], True)


@pytest.mark.parametrize(("seconds", "missed"), [(0.25, ["a"]), (1.0, ["a", "b", "c"])])
def test_dead_letter_topic_that_takes_long_leaves_time_for_others(
    site: Site, monkeypatch: pytest.MonkeyPatch, seconds: float, missed: list[str]
) -> None:
    store(site, Message(b"a"))
    ledger, entry, *_ = listed(site)[0]["id"].split(":")
    for local, position in (("a", "9:9"), ("b", f"{ledger}:{entry}"), ("c", "9:9")):
        bury(site, position, local)
    dead = [TopicName.parse(local) for local in "abc"]
    now, asked = [0.0], list[TopicName]()
    describe = site.backend.describe_topic

    def slow(topic: TopicName, timeout: float) -> TopicStats:
        asked.append(topic)
        now[0] += seconds if topic == dead[0] else 0.0
        return describe(topic, timeout)

    view: Any = site.app.view_functions["console.message"]
    reading = view.__self__._services.reading
    monkeypatch.setattr(site.backend, "describe_topic", slow)
    monkeypatch.setattr(reading, "clock", lambda: now[0])
    (stored,) = (log.messages[0] for log in site.backend.topic(TOPIC).logs.values())
    found = DeadLetterTracer(site.backend, reading, 5).trace(TOPIC, stored, dead)
    assert [topic.local for topic in found.unsearched] == missed
    is_late = missed == ["a", "b", "c"]
    assert [one.topic for one in found.dead_letters] == ([] if is_late else dead[1:2])
    assert asked == (dead[:1] if is_late else dead)


def test_slow_store_is_searched_no_longer_than_the_bounds(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of messages may take four times its time to have one: this search does not."""
    store(site, Message(b"a"))
    for _ in range(40):
        bury(site, "9:9")
    now, asked = [0.0], list[float]()
    view: Any = site.app.view_functions["console.message"]
    reading = view.__self__._services.reading
    opened = type(reading).reader

    def slow(*given: Any) -> Any:
        asked.append(now[0])
        now[0] += 0.11
        return opened(reading, *given)

    monkeypatch.setattr(reading, "reader", slow)
    monkeypatch.setattr(reading, "clock", lambda: now[0])
    (stored,) = (log.messages[0] for log in site.backend.topic(TOPIC).logs.values())
    bounds = TraceBounds(2_000, 0.1)
    dead = TopicName.parse("t.dlq")
    found = DeadLetterTracer(site.backend, reading, 5).trace(TOPIC, stored, [dead], bounds)
    assert (found.unsearched, asked) == ((dead,), [0.0])


def test_topic_for_bad_records_of_a_pipeline_is_searched(
    sites: Callable[..., Site], tmp_path: Path
) -> None:
    declared = 'dead_letters = "bad-records"'
    deep = f"a = {'[' * 20_000}  # dead_letters"
    for name, text in (("p", declared), ("q", "["), ("r", 'dead_letters = "a/b/c"'), ("s", deep)):
        (tmp_path / f"{name}.toml").write_text(text)
    site = sites(pipelines_folder=str(tmp_path))
    store(site, Message(b"a"))
    ledger, entry, *_ = listed(site)[0]["id"].split(":")
    bury(site, f"{ledger}:{entry}", "bad-records", **{"router-pipeline": "p"})
    story = page(site)["story"]
    assert story["searched"] == ["bad-records"]
    assert [one["topic"] for one in story["dead_letters"]] == ["bad-records"]


def test_declarations_are_read_again_when_they_change(
    sites: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, read, parse = tmp_path / "p.toml", list[str](), tomllib.loads

    def noted(text: str) -> dict[str, Any]:
        read.append(text)
        found: dict[str, Any] = parse(text)
        return found

    site = sites(pipelines_folder=str(tmp_path))
    store(site, Message(b"a"))
    for dead in ("bad", "worse"):
        bury(site, "9:9", dead)
    monkeypatch.setattr(tomllib, "loads", noted)
    for number, dead in enumerate(("bad", "worse"), 1):
        file.write_text(f'dead_letters = "{dead}"')
        assert [page(site)["story"]["searched"] for _ in range(3)] == [[dead]] * 3
        assert len(read) == number
    file.unlink()
    assert page(site)["story"]["searched"] == []


def test_dead_letter_topic_that_fails_hides_nothing_of_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(site, Message(b"a"))
    for group in ("g", "h"):
        site.poll(f"/events/t/{group}/1")
    ledger, entry, *_ = listed(site)[0]["id"].split(":")
    for dead in ("t-g-DLQ", "t-h-DLQ"):
        bury(site, f"{ledger}:{entry}", dead)
    describe = site.backend.describe_topic

    def failing(topic: TopicName, timeout: float) -> TopicStats:
        if topic.local == "t-g-DLQ":
            raise BackendUnavailableError("its node is away")
        return describe(topic, timeout)

    monkeypatch.setattr(site.backend, "describe_topic", failing)
    done = [
        MessageAction("requeued", str(TopicName.parse(dead)), "u", 0)
        for dead in ("t-g-DLQ", "t-h-DLQ")
    ]
    monkeypatch.setattr(MessageHistory, "find", lambda *_: (done, 0))
    story = page(site)["story"]
    assert [one["topic"] for one in story["dead_letters"]] == ["t-h-DLQ"]
    assert story["unsearched"] == ["t-g-DLQ"]
    # That one has gone back is known all the same.
    assert [one["topic"] for one in story["actions"]] == ["t-g-DLQ"]


def test_topics_of_pipelines_elsewhere_take_no_place_of_others(
    sites: Callable[..., Site], tmp_path: Path
) -> None:
    for number in range(message_story.MAX_PIPELINES + 1):
        declared = f'dead_letters = "persistent://a/b/bad-{number}"'
        (tmp_path / f"{number}.toml").write_text(declared)
    (tmp_path / "z.toml").write_text('dead_letters = "worse"')
    site = sites(pipelines_folder=str(tmp_path))
    store(site, Message(b"a"))
    bury(site, "9:9", "worse")
    story = page(site)["story"]
    assert (story["searched"], story["whole"]) == (["worse"], True)


@pytest.mark.parametrize("digits", [13, 30, 5_000])
def test_original_time_of_any_length_keeps_no_page_from_being_shown(
    site: Site, digits: int
) -> None:
    bury(site, "9:9", **{"router-publish-time": "1" * digits})
    (row,) = site.client.get("/console/topics/t.dlq?tab=messages&format=json").get_json()[
        "messages"
    ]
    for path in (f"topics/t.dlq/messages/{row['id']}", "dead-letters/t.dlq"):
        answer = site.client.get(f"/console/{path}?format=json")
        assert answer.status_code == 200
        assert ("2005-" in answer.text) == (digits == 13)


def test_dead_letter_is_found_behind_newer_ones_of_its_partition(site: Site) -> None:
    dead = TopicName.parse("t.dlq")
    notes = {"router-topic": "t", "router-partition": "0"}
    other = Message(b"a", None, notes | {"router-position": "9:9"})
    site.client.post("/topics/create", json={"topicName": "t.dlq", "partitionCount": 2})
    for _ in range(tracing.MAX_DEAD_LETTERS):
        site.backend.publish(Batch(dead, 0, [other]), 5)  # older than the message
    time.sleep(0.002)
    store(site, Message(b"a"))
    ledger, entry, *_ = listed(site)[0]["id"].split(":")
    dead_letter = Message(b"a", None, notes | {"router-position": f"{ledger}:{entry}"})
    for one in (dead_letter, *[other] * 600):
        site.backend.publish(Batch(dead, 1, [one]), 5)
    story = page(site)["story"]
    assert ([one["topic"] for one in story["dead_letters"]], story["whole"]) == (["t.dlq"], True)


@pytest.mark.parametrize(("count", "found"), [(700, 4), (2_100, 0)])
def test_dead_letters_about_a_large_batch(
    site: Site, monkeypatch: pytest.MonkeyPatch, count: int, found: int
) -> None:
    """Those before it and at its end are found, or the topic is named as one with more."""
    for name, bounds in list(TRACES.items()):
        monkeypatch.setitem(TRACES, name, replace(bounds, seconds=60.0))
    bury(site, "9:9")
    time.sleep(0.002)
    store(site, Message(b"a"))
    ledger, entry, *_ = listed(site)[0]["id"].split(":")
    for _ in range(2):
        bury(site, f"{ledger}:{entry}")
    notes = {"router-topic": "t", "router-partition": "0"}
    other = Message(b"a", None, notes | {"router-position": "9:9"})
    last = Message(b"a", None, notes | {"router-position": f"{ledger}:{entry}"})
    batch = Batch(TopicName.parse("t.dlq"), -1, [*[other] * (count - 2), last, last])
    site.backend.publish(batch, 5)
    story = page(site)["story"]
    assert (len(story["dead_letters"]), story["whole"]) == (found, found > 0)
    longer = page(site, query="letters=long")["story"]
    assert (len(longer["dead_letters"]), longer["whole"]) == (4, True)


def test_more_groups_than_are_looked_at_are_not_said_to_have_no_dead_letters(site: Site) -> None:
    store(site, Message(b"a"))
    for number in range(message_story.MAX_GROUPS + 1):
        assert page(site)["story"]["whole"]
        site.poll(f"/events/t/g{number}/1")
    bury(site, "9:9", f"t-g{message_story.MAX_GROUPS}-DLQ")
    assert not page(site)["story"]["whole"]
    text = site.client.get(f"{PAGE}/{listed(site)[0]['id']}?format=html").text
    assert "The topic has no dead-letter topic" not in text
    assert "Not all messages of other dead-letter topics were searched" in text


def test_message_is_sent_again_as_it_is(site: Site) -> None:
    sent = Message(b"\xff", b"k", {"a": "1"}, event_time=5)
    store(site, sent)
    address = f"{PAGE}/{listed(site)[0]['id']}/send"
    assert site.client.post(f"{address}?format=json", data={"edited": ""}).get_json()["sent"] == 1
    again = site.backend.published[-1].messages[0]
    assert (again.value, again.key, dict(again.properties), again.event_time) == sent[:4]
    answer = site.client.post(address, data={"edited": ""})
    assert answer.status_code == 303
    assert "1 message sent." in site.client.get(answer.headers["Location"]).text


@pytest.mark.parametrize(
    ("fields", "value", "null"),
    [({"value": "other"}, b"other", False), ({"null": "yes"}, b"", True), ({}, b"", False)],
)
def test_message_is_edited_and_sent(
    site: Site, fields: dict[str, str], value: bytes, null: bool
) -> None:
    store(site, Message(b"a", b"k", {"a": "1", "Nats-Subject": "t.x"}))
    form = {"edited": "yes", "key": "", "headers": "b: 2"} | fields
    address = f"{PAGE}/{listed(site)[0]['id']}/send?format=json"
    assert site.client.post(address, data=form).status_code == 200
    again = site.backend.published[-1].messages[0]
    assert (again.value, again.null, again.key) == (value, null, None)
    assert again.properties == {"b": "2", "Nats-Subject": "t.x"}


def test_bytes_are_not_edited(site: Site) -> None:
    store(site, Message(b"\xff"))
    assert not page(site)["editable"]
    address = f"{PAGE}/{listed(site)[0]['id']}/send?format=json"
    assert site.client.post(address, data={"edited": "yes", "value": "a"}).status_code == 400


@pytest.mark.parametrize(
    ("message", "status"), [("1:7000:-1", 404), ("1:0:4", 404), ("nonsense!", 400)]
)
def test_message_that_is_not_there_says_so(site: Site, message: str, status: int) -> None:
    store(site, Message(b"a"))
    assert site.client.get(f"{PAGE}/{message}?format=json").status_code == status


def test_rights_are_those_of_reading_and_publishing(
    sites: Callable[..., Site], tmp_path: Any
) -> None:
    users = tmp_path / "users"
    users.write_text(f"anna:{HASHES['argon2']}\nbob:{HASHES['argon2']}\n")
    site = sites(auth_users=str(users))
    anna = {"Authorization": header("anna", "secret")}
    site.client.post("/topics/create", json={"topicName": "t"}, headers=anna)
    site.backend.publish(Batch(TOPIC, -1, [Message(b"a")]), 5)
    place = site.client.get("/console/topics/t?tab=messages&format=json", headers=anna).get_json()
    address = f"{PAGE}/{place['messages'][0]['id']}"
    assert site.client.get(address, headers=anna).status_code == 200
    assert site.client.get(f"{address}?format=json").status_code == 401
    assert site.client.post(f"{address}/send?format=json", data={"edited": ""}).status_code == 401
