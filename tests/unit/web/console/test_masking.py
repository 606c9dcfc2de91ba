"""What who may only browse a topic sees of it: nothing that is masked, on any page."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends import Batch
from router.model import Message, Position, Stored, TopicInfo, TopicName
from router.web.console.masking import HIDE_ALL, HIDE_NOTHING, MASKED, PROPERTY, REASON, Mask
from router.web.console.message_page import FORMS
from router.web.console.message_tab import VIEWS
from router.web.console.topic import TABS
from tests.unit.web.applications import HASHES, Site, header

SECRET = "4111-2222-3333"
TOPIC, CLOSED = TopicName.parse("pay"), TopicName.parse("pay.closed")
PATHS = {TOPIC: "$.card, $.items[*].card, key", CLOSED: ""}
NAMES = st.text("abc", min_size=1, max_size=2)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("xyz"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
MESSAGES = (
    Message(
        json.dumps({"open": "apples", "card": SECRET, "items": [{"card": [SECRET]}]}).encode(),
        SECRET.encode(),
        {"h": SECRET, "Nats-Subject": f"pay.{SECRET}"},
    ),
    Message(SECRET.encode()),
    Message(json.dumps(SECRET).encode()),
    Message(json.dumps([{"card": SECRET}]).encode()),
    Message(gzip.compress(json.dumps({"card": SECRET}).encode(), mtime=0)),
    Message(b"\x81\xa4card\xae" + SECRET.encode()),
    Message(b"", SECRET.encode(), null=True),
)


def stored(value: bytes, key: bytes | None = None, **properties: str) -> Stored:
    return Stored(Message(value, key, properties), Position(1, 2, 0), 3)


def masked(paths: str, value: object) -> Any:
    raw = json.dumps(value).encode()
    return json.loads(Mask.read(paths).shown(stored(raw)).stored.message.value)


@given(VALUES, st.lists(NAMES | st.integers(0, 2), min_size=1, max_size=4), VALUES)
def test_what_a_path_leads_to_is_masked_and_all_else_stays(
    secret: Any, steps: list[str | int], other: Any
) -> None:
    value: Any = {"card": [SECRET, secret]}
    expected: Any = MASKED
    for step in reversed(steps):
        beside = {} if other is None else {"other": other}
        value = {step: value, **beside} if isinstance(step, str) else [other] * step + [value]
        expected = (
            {step: expected, **beside} if isinstance(step, str) else [other] * step + [expected]
        )
    path = "$" + "".join(f".{one}" if isinstance(one, str) else f"[{one}]" for one in steps)
    assert masked(path, value) == expected


@pytest.mark.parametrize(
    ("paths", "value", "shown"),
    [
        ("$.a", {"a": 1, "b": 2}, {"a": MASKED, "b": 2}),
        ("$.a,$.b.c", {"a": 1, "b": {"c": 2, "d": 3}}, {"a": MASKED, "b": {"c": MASKED, "d": 3}}),
        ("$.*.c", {"a": {"c": 1}, "b": [2]}, {"a": {"c": MASKED}, "b": MASKED}),
        ("$[*].c", [{"c": 1}, {"d": 2}], [{"c": MASKED}, {"d": 2}]),
        ("$.a.b", {"a": "text", "c": 1}, {"a": MASKED, "c": 1}),
        ("$.a[0]", {"a": {"b": 1}}, {"a": MASKED}),
        ('$["a b"]', {"a b": 1}, None),
        ("$.none", {"a": 1}, {"a": 1}),
    ],
)
def test_path_that_cannot_be_followed_masks_where_it_ends(
    paths: str, value: object, shown: object
) -> None:
    if shown is None:
        assert Mask.read(paths) is HIDE_ALL
    else:
        assert masked(paths, value) == shown


@pytest.mark.parametrize(
    "paths",
    ["", "*", "$.a,*", "key", "a", "$.a=1", "$.a[", ",".join(f"$.a{n}" for n in range(101))],
)
def test_all_is_masked_unless_paths_say_what(paths: str) -> None:
    assert Mask.read(paths) is HIDE_ALL


@pytest.mark.parametrize(
    "value",
    [
        b"text",
        b'"text"',
        b"12",
        b'[{"a":1}]',
        b"\xff",
        b"NaN",
        b'{"b":NaN}',
        b'{"b":1e999}',
        b"{" * 9_999,
        b"[" * 200_000,
        b'{"b":"\\ud800"}',
        b"",
    ],
)
def test_value_that_paths_do_not_apply_to_is_masked_whole(value: bytes) -> None:
    one = Mask.read("$.a").shown(stored(value, b"k", h="text"))
    assert one.stored.message == Message(MASKED.encode(), b"k", {"h": MASKED})
    assert (one.bytes, one.masked) == (len(value), True)


def test_last_of_two_members_of_a_name_is_masked_and_no_other_is_shown() -> None:
    one = Mask.read("$.a").shown(stored(b'{"a":"first","a":"last"}'))
    assert json.loads(one.stored.message.value) == {"a": MASKED}


def test_who_may_subscribe_sees_the_message_itself() -> None:
    one = stored(b"text", b"k", h="v")
    assert HIDE_NOTHING.shown(one).stored is one


@pytest.fixture
def site(sites: Callable[..., Site], tmp_path: Path) -> Site:
    """Two topics with secrets; anna may browse them, bert subscribe, carl has another right."""
    users, rules = tmp_path / "users", tmp_path / "permissions"
    users.write_text("".join(f"{name}:{HASHES['argon2']}\n" for name in ("anna", "bert", "carl")))
    rules.write_text("anna pay* browse publish\nbert pay* subscribe publish\ncarl pay* publish\n")
    made = sites(auth_users=str(users), auth_permissions=str(rules))
    for topic, paths in PATHS.items():
        made.backend.create_topic(
            TopicInfo(topic, 0, properties={PROPERTY: paths} if paths else {}), 5
        )
        made.backend.publish(Batch(topic, -1, list(MESSAGES)), 5)
    return made


def known(user: str) -> dict[str, str]:
    return {"Authorization": header(user, "secret")}


def walk(site: Site, user: str, topic: TopicName) -> Iterator[tuple[str, int, str]]:
    """Give address, status and text of what each route of the console answers about a topic."""
    listed = site.client.get(
        f"/console/topics/{topic.local}?tab=messages&format=json", headers=known("bert")
    ).get_json()
    ids = [one["id"] for one in listed["messages"]]
    assert len(ids) == len(MESSAGES)
    forms = [f"as={form}" for form in FORMS]
    tabs = [f"tab={tab}" for tab in TABS] + [f"tab=messages&view={view}" for view in VIEWS]
    tabs += ["tab=messages&from=earliest&filter=$.card", "as=csv", f"topics={topic.local}"]
    for rule in site.app.url_map.iter_rules():
        if not rule.rule.startswith("/console") or "signout" in rule.rule:
            continue
        for number in ids if "message" in rule.arguments else [""]:
            given = {"topic": topic.local, "message": number}
            path = rule.rule
            for name in rule.arguments:
                path = path.replace(f"<{name}>", given.get(name, "x")).replace(
                    f"<path:{name}>", "x"
                )
            for method in (rule.methods or set()) & {"GET", "POST"}:
                if path.endswith("/stream"):
                    query = f"topics={topic.local}&from=earliest"
                    yield path, *tail(site, user, f"{path}?{query}")
                    continue
                for query in _both(forms if number else tabs if method == "GET" else [""]):
                    answer = site.client.open(f"{path}?{query}", method=method, headers=known(user))
                    yield (
                        f"{method} {path}?{query}",
                        answer.status_code,
                        answer.get_data().decode(errors="replace"),
                    )


def _both(queries: list[str]) -> list[str]:
    return [f"format={kind}&{query}" for query in queries for kind in ("html", "json")]


def tail(site: Site, user: str, address: str) -> tuple[int, str]:
    """Return the status and the events of all messages; a stream does not end by itself."""
    answer = site.client.get(address, buffered=False, headers=known(user))
    text = ""
    try:
        if answer.status_code == 200:
            for piece in answer.iter_encoded():
                text += piece.decode()
                if text.count("data: ") >= len(MESSAGES):
                    break
    finally:
        answer.close()
    return answer.status_code, text


WRITTEN = (SECRET, SECRET.encode().hex(" ")[:23], base64.b64encode(SECRET.encode()).decode()[:15])


@pytest.mark.parametrize("topic", PATHS, ids=str)
def test_no_page_shows_what_is_masked(site: Site, topic: TopicName) -> None:
    packed = base64.b64encode(MESSAGES[4].value).decode()
    seen = {address: (status, text) for address, status, text in walk(site, "anna", topic)}
    assert [
        a for a, (_, text) in seen.items() if any(one in text for one in (*WRITTEN, packed))
    ] == []
    read = [address for address, (status, text) in seen.items() if status == 200 and MASKED in text]
    for page in (f"/console/topics/{topic.local}/stream", "/console/watch/stream"):
        assert page in read
    for page in (f"topics/{topic.local}?", f"topics/{topic.local}/messages/", "watch?"):
        assert any(page in address for address in read), page
    refused = [address for address, (status, _) in seen.items() if status == 403]
    for page in ("/export", "/value", "/send", "/replay"):
        assert any(page in address.partition("?")[0] for address in refused), page
    shown = any("apples" in text for _, text in seen.values())
    assert shown == (topic == TOPIC)
    # The same pages show it to who may subscribe: the walk goes where the messages are.
    raw = [address for address, _, text in walk(site, "bert", topic) if SECRET in text]
    for page in ("messages/", "watch?", "/stream", "/watch/stream", "/export", "/value"):
        assert any(page in address for address in raw), page


@pytest.mark.parametrize(
    "query",
    [
        "filter=4111",
        "filter=$.card~4111",
        "filter=$.card!=•••",
        "filter=key~4",
        "filter=header:h~4",
        f"key={SECRET}",
        f"header=h={SECRET}",
        f"path=$.card={SECRET}",
        "filter=$.items[*].card[*]",
        "filter=$.card<5",
    ],
)
def test_no_filter_finds_what_is_masked(site: Site, query: str) -> None:
    for topic in PATHS:
        page = f"/console/topics/{topic.local}?tab=messages&format=json"
        for start in ("", "&from=earliest"):
            answer = site.client.get(f"{page}{start}&{query}", headers=known("anna"))
            assert answer.status_code == 200
            found = [one["value"] for one in answer.get_json()["messages"]]
            assert found == [], query
    watched = site.client.get(
        f"/console/watch?format=json&topics=pay*&{query}", headers=known("anna")
    )
    assert query[:6] != "filter" or watched.get_json()["messages"] == []


def test_without_the_right_nothing_is_read(site: Site) -> None:
    page = site.client.get("/console/topics/pay?tab=messages&format=json", headers=known("carl"))
    assert page.get_json()["messages"] == []
    assert page.get_json()["note"] == "You may not read this topic."
    assert tail(site, "carl", "/console/topics/pay/stream?from=earliest")[0] == 403
    # To browse is not to read by an API.
    for path in ("/events/pay?stream", "/events/pay/g/1", "/topics/pay/latest"):
        assert site.client.get(path, headers=known("anna")).status_code in {403, 404}, path


def test_what_needs_the_value_is_greyed_with_the_reason(site: Site) -> None:
    tab = "/console/topics/pay?tab=messages"
    found = site.client.get(f"{tab}&format=json", headers=known("anna")).get_json()
    page = f"/console/topics/pay/messages/{found['messages'][0]['id']}"
    for address, labels in (
        (f"{page}?as=auto", ("Copy value", "Download", "Send again", "Edit and send")),
        (tab, ("Export", "Replay")),
    ):
        text = site.client.get(f"{address}&format=html", headers=known("anna")).text
        for label in labels:
            button = rf'disabled title="{re.escape(REASON)}"[^>]*>{label}</button>'
            assert re.search(button, text), label
    assert found["messages"][0]["bytes"] == len(MESSAGES[0].value)
