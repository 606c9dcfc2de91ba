"""Replaying messages into a topic: each once, with keys, headers and order."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from router.backends import Batch
from router.errors import BackendUnavailableError
from router.model import Message, Schema, SchemaType, Stored, TopicInfo, TopicName
from router.services import scan
from tests.unit.web.applications import HASHES, Site, header

SOURCE, TARGET = TopicName.parse("t"), TopicName.parse("copy")
PAGE = "/console/topics/t/replay"
STATE = ("id", "cursor", "until", "end", "stored")


@pytest.fixture
def site(sites: Callable[..., Site]) -> Site:
    """A site with a topic of 2 partitions, and one of 3 to replay into."""
    made = sites()
    made.backend.create_topic(TopicInfo(SOURCE, 2), 5)
    made.backend.create_topic(TopicInfo(TARGET, 3), 5)
    return made


def fill(site: Site, count: int) -> None:
    for n in range(count):
        key = None if n % 3 == 0 else b"k%d\xff" % (n % 5)
        message = Message(b"%d" % n, key, {"n": str(n)}, event_time=n + 1)
        site.backend.publish(Batch(SOURCE, n % 2, [message]), 5)


def begin(site: Site, query: str = "from=earliest") -> dict[str, Any]:
    answer = site.client.get(f"{PAGE}?format=json&{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def step(
    site: Site, state: dict[str, Any], to: str = "copy", most: int = 500, status: int = 200
) -> dict[str, Any]:
    form = {name: state[name] for name in STATE} | state["filters"] | {"to": to, "most": most}
    answer = site.client.post(f"{PAGE}?format=json", data=form)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def to_end(site: Site, state: dict[str, Any], **more: Any) -> dict[str, Any]:
    while not state["done"]:
        assert not state["stalled"]
        state = step(site, state, **more)
    return state


def stored(site: Site, topic: TopicName = TARGET) -> list[Stored]:
    logs = site.backend.topic(topic).logs.values()
    return [one for log in logs for one in log.messages]


def test_messages_are_replayed_once_with_keys_headers_times_and_order(site: Site) -> None:
    fill(site, 60)
    state = to_end(site, begin(site), most=7)
    assert state["stored"] == 60
    copies = stored(site)
    assert sorted(int(one.message.value) for one in copies) == list(range(60))
    sources = {one.message.value: one.message for one in stored(site, SOURCE)}
    assert all(one.message == sources[one.message.value] for one in copies)
    for key in {one.message.key for one in copies}:
        for parity in (0, 1):
            values = [int(o.message.value) for o in copies if o.message.key == key]
            own = [value for value in values if value % 2 == parity]
            assert own == sorted(own)


def test_batch_that_is_sent_again_stores_nothing_again(site: Site) -> None:
    fill(site, 20)
    state = begin(site)
    first = step(site, state, most=5)
    assert step(site, state, most=5)["until"] == first["until"]
    state = to_end(site, first, most=5)
    step(site, first, most=5)
    assert len(stored(site)) == 20


def test_batch_that_fails_in_the_middle_is_completed_by_the_next_try(site: Site) -> None:
    fill(site, 20)
    state = begin(site)
    site.backend.publishing = [None, BackendUnavailableError("away")]
    step(site, state, status=503)
    assert 0 < len(stored(site)) < 20
    assert to_end(site, state)["stored"] == 20
    assert sorted(int(one.message.value) for one in stored(site)) == list(range(20))


def test_messages_that_come_meanwhile_are_not_replayed_into_the_same_topic(site: Site) -> None:
    fill(site, 20)
    assert to_end(site, begin(site), to="t", most=3)["stored"] == 20
    assert len(stored(site, SOURCE)) == 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("from=earliest&filter=19", [19]),
        ("from=earliest&partition=1&path=$.none", []),
        ("from=earliest&partition=1", list(range(1, 60, 2))),
        ("partition=0", list(range(0, 60, 2))),
        ("header=n=7", [7]),
        ("from=1970-01-01T00:00Z&header=n=8", [8]),
        ("from=2100-01-01T00:00Z", []),
        ("before=@1.2,@2.2", [0, 1, 2, 3]),
    ],
)
def test_what_the_page_shows_is_what_is_replayed(
    site: Site, query: str, values: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SILENCE_SECONDS", 0.5)
    fill(site, 60)
    to_end(site, begin(site, query))
    assert sorted(int(one.message.value) for one in stored(site)) == values


def test_empty_topic_is_replayed_at_once(site: Site) -> None:
    state = begin(site)
    assert (state["done"], state["left"]) == (True, 0)


def test_form_without_script_replays_a_batch_at_a_time(site: Site) -> None:
    fill(site, 600)
    page = site.client.get(f"{PAGE}?from=earliest").text
    for button, count in (("Replay", 500), ("Replay the next batch", 600)):
        assert f">{button}</button>" in page
        form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
        form = {name: unescape(value) for name, value in form.items()}
        page = site.client.post(PAGE, data=form | {"to": "copy"}).text
        assert f"{count} messages stored in copy." in page
    assert "Done." in page
    assert len(stored(site)) == 600


def test_schemas_become_those_of_the_target(site: Site) -> None:
    first, second = Schema(SchemaType.STRING), Schema(SchemaType.INT32)
    site.backend.schemas.put(TARGET, first, 5)
    version = site.backend.schemas.put(SOURCE, first, 5)
    site.backend.publish(Batch(SOURCE, 0, [Message(b"a", schema_version=version)]), 5)
    to_end(site, begin(site))
    [copy] = stored(site)
    assert site.backend.schemas.get(TARGET, copy.message.schema_version, 5).type is first.type
    other = TopicName.parse("other")
    site.backend.create_topic(TopicInfo(other), 5)
    site.backend.schemas.put(other, second, 5)
    step(site, begin(site), to="other", status=409)
    assert stored(site, other) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"to": "absent"}, 404),
        ({"to": "a/b"}, 400),
        ({"to": ""}, 400),
        ({"id": "x"}, 400),
        ({"cursor": "x"}, 400),
        ({"until": "@1.2"}, 400),
        ({"end": ""}, 400),
        ({"path": "x"}, 400),
    ],
)
def test_replay_that_cannot_be_read_is_refused(
    site: Site, change: dict[str, str], status: int
) -> None:
    fill(site, 2)
    state = begin(site)
    form = {name: state[name] for name in STATE} | {"to": "copy"} | change
    answer = site.client.post(f"{PAGE}?format=json", data=form)
    assert answer.status_code == status, answer.text
    assert stored(site) == []
    assert "absent" not in [info.topic.local for info in site.backend.list_topics(5)]


def test_source_is_to_be_read_and_target_to_be_published_to(
    sites: Callable[..., Site], tmp_path: Path
) -> None:
    users, rules = tmp_path / "users", tmp_path / "rules"
    names = ("both", "reader", "writer")
    users.write_text("".join(f"{name}:{HASHES['bcrypt']}\n" for name in names))
    rules.write_text(
        "both t subscribe\nboth copy publish\nreader t subscribe\nreader copy subscribe\n"
        "writer t publish\nwriter copy publish\n"
    )
    site = sites(auth_users=str(users), auth_permissions=str(rules))
    for topic in (SOURCE, TARGET):
        site.backend.create_topic(TopicInfo(topic, 2), 5)
    fill(site, 2)
    known = {name: {"Authorization": header(name, "secret")} for name in names}
    state = site.client.get(f"{PAGE}?format=json&from=earliest", headers=known["both"]).get_json()
    form = {name: state[name] for name in STATE} | {"to": "copy"}
    for name, status in (("reader", 403), ("writer", 403), ("both", 200)):
        answer = site.client.post(f"{PAGE}?format=json", data=form, headers=known[name])
        assert answer.status_code == status, name
    assert site.client.get(PAGE, headers=known["writer"]).status_code == 403
    assert len(stored(site)) == 2
