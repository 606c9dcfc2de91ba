"""The page of all groups."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from markupsafe import escape

from router.backends import Start
from router.errors import NotAllowedError
from router.model import Subscription, SubscriptionStats, TopicName
from tests.unit.web.applications import HASHES, Site, header

BROWSER = {"Accept": "text/html"}
RESET = "/console/topics/t/groups/g/reset"


@pytest.fixture
def read(site: Site) -> Site:
    """A topic with three messages, of which a group has read two."""
    site.post("/events/t", "a\nb")
    assert site.poll().get_json() == ["a", "b"]
    site.post("/events/t", "c")
    return site


def twin(site: Site, path: str) -> dict[str, Any]:
    """Return the JSON of a page."""
    mark = "&" if "?" in path else "?"
    answer = site.client.get(f"{path}{mark}format=json")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def test_groups_of_all_topics_are_told_with_their_lag(read: Site) -> None:
    read.post("/events/u", "a")
    read.poll("/events/u/h/c")
    assert twin(read, "/console/groups")["groups"] == [
        {"group": "g", "topic": "t", "lag": 1, "members": 0, "last_used": None, "may_reset": True},
        {"group": "h", "topic": "u", "lag": 0, "members": 0, "last_used": None, "may_reset": True},
    ]
    assert [row["group"] for row in twin(read, "/console/groups?q=H")["groups"]] == ["h"]
    assert [row["group"] for row in twin(read, "/console/groups?topic=t")["groups"]] == ["g"]
    page = read.client.get("/console/groups", headers=BROWSER).text
    assert 'aria-label="Groups"' in page
    assert f'action="{RESET}"' in page
    assert 'href="/console/topics/t/groups/g"' in page


@pytest.mark.parametrize("path", ["/console/groups", "/console/topics/t?tab=groups"])
def test_groups_say_how_long_ago_they_were_used(
    read: Site, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    stats = read.backend.describe_topic(TopicName.parse("t"), 5)
    used = tuple(replace(one, last_used_ms=86_400_000) for one in stats.subscriptions)
    monkeypatch.setattr(
        read.backend, "describe_topic", lambda *_: replace(stats, subscriptions=used)
    )
    assert twin(read, path)["groups"][0]["last_used"] == 86_400_000
    page = read.client.get(path, headers=BROWSER).text
    assert re.search(r'title="1970-01-02 00:00:00.000Z">[0-9.]+ d ago</time>', page)


def test_what_reads_without_a_group_is_none(read: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = read.backend.describe_topic(TopicName.parse("t"), 5)
    tail = SubscriptionStats("router-reader-1", -1, 3, 1, durable=False)
    told = replace(stats, subscriptions=(*stats.subscriptions, tail))
    monkeypatch.setattr(read.backend, "describe_topic", lambda *_: told)
    for path in ("/console/groups", "/console/topics/t?tab=groups"):
        assert [row["group"] for row in twin(read, path)["groups"]] == ["g"]
    assert twin(read, "/console/topics")["topics"][0]["groups"] == 1


@pytest.mark.parametrize(
    ("to", "told"),
    [
        ("to=earliest", "Lag now: 1. Lag after the reset: 3."),
        ("to=latest", "Lag now: 1. Lag after the reset: 0."),
        ("to=time&time=2026-11-01T00:00Z", "Lag now: 1. Lag after the reset: between 0 and 3."),
        ("to=time", "Give a time with its zone, such as 2026-11-01T00:00Z."),
        ("to=position&position=1:0:0", "Lag now: 1. Lag after the reset: between 2 and 3."),
        (
            "to=position",
            "Give positions such as 5:17:0 (ledger, entry, partition), with commas between them.",
        ),
    ],
)
def test_preview_says_what_would_change_and_changes_nothing(read: Site, to: str, told: str) -> None:
    assert twin(read, f"{RESET}?{to}")["preview"] == told
    assert told in read.client.get(f"{RESET}?{to}", headers=BROWSER).text
    assert twin(read, "/console/groups")["groups"][0]["lag"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "values"),
    [
        ({"to": "earliest"}, ["a", "b", "c"]),
        ({"to": "latest"}, []),
        ({"to": "time", "time": "1970-01-01T00:00:01Z"}, ["a", "b", "c"]),
        ({"to": "position", "position": "1:1:0"}, ["c"]),
    ],
)
def test_reset_moves_the_group_and_shows_it(
    read: Site, form: dict[str, str], values: list[str]
) -> None:
    answer = read.client.post(RESET, data=form, headers=BROWSER)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/groups?topic=t")
    assert read.poll().get_json() == values


def test_reset_shows_its_commands(read: Site) -> None:
    found = read.client.post(RESET + "?format=json", data={"to": "earliest"}).get_json()
    assert found["commands"] == [
        "curl -X POST 'http://localhost/topics/t/groups/g/reset?to=earliest'",
        "router groups reset t g --to earliest",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/console/topics/absent/groups/g/reset", 404),
        ("GET", "/console/topics/t/groups/absent/reset", 404),
        ("POST", "/console/topics/t/groups/absent/reset", 404),
        ("GET", RESET + "?to=yesterday", 400),
        ("GET", RESET + "?to=time&time=noon", 400),
        ("GET", RESET + "?to=position&position=7", 400),
        ("GET", RESET + "?to=position&position=1:0:3", 400),
        ("GET", "/console/topics/t/groups/%3Cb%3E/reset", 404),
    ],
)
def test_reset_that_cannot_be_done_says_why(
    read: Site, method: str, path: str, status: int
) -> None:
    form = {"to": "latest"} if method == "POST" else None
    answer = read.client.open(path, method=method, data=form, headers=BROWSER)
    assert (answer.status_code, answer.mimetype) == (status, "text/html")
    assert "<b>" not in answer.text


@pytest.mark.parametrize("sent", [{"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}])
def test_reset_from_another_site_is_refused(read: Site, sent: dict[str, str]) -> None:
    assert read.client.post(RESET, data={"to": "latest"}, headers=sent).status_code == 403
    assert read.poll().get_json() == ["c"]


def test_who_may_not_manage_a_topic_may_not_reset_its_groups(
    sites: Callable[..., Site], tmp_path: Path
) -> None:
    users, rules = tmp_path / "users", tmp_path / "rules"
    users.write_text(f"anna:{HASHES['bcrypt']}\n")
    rules.write_text("anna t publish\nanna t subscribe\n")
    site = sites(auth_users=str(users), auth_permissions=str(rules))
    anna = {"Authorization": header("anna", "secret")}
    site.post("/events/t", "a", headers=anna)
    site.client.get("/events/t/g/c?timeout=0", headers=anna)
    found = site.client.get("/console/groups?format=json", headers=anna).get_json()
    assert [row["may_reset"] for row in found["groups"]] == [False]
    assert "<button disabled" in site.client.get("/console/groups", headers=BROWSER | anna).text
    assert site.client.get(RESET, headers=anna).status_code == 403
    refused = site.client.post(RESET, data={"to": "latest"}, headers=anna)
    assert refused.status_code == 403


GROUP = "/console/topics/t/groups/g"


def test_page_of_a_group_shows_members_leases_and_positions(read: Site) -> None:
    data = twin(read, GROUP)
    assert (data["topic"], data["group"], data["details"]["backlog"]) == ("t", "g", 1)
    assert [member["consumer"] for member in data["details"]["members"]] == ["c"]
    (row,) = data["details"]["partitions"]
    assert (row["committed"], row["first"], row["end"]) == ("1:0:0", "1:0:0", "1:2:0")
    assert (data["no_reset"], data["no_delete"]) == ("", "")
    assert data["commands"][:2] == [
        "curl http://localhost/topics/t/groups/g",
        "router groups show t g",
    ]
    page = read.client.get(GROUP, headers=BROWSER).text
    for text in ('aria-label="Partitions"', 'aria-label="Members"', "1:2:0", "Reset partition 0"):
        assert text in page


def test_group_is_deleted_when_its_name_is_written(read: Site) -> None:
    refused = read.client.post(f"{GROUP}/delete", data={"confirm": "h"}, headers=BROWSER)
    assert refused.status_code == 400
    done = read.client.post(f"{GROUP}/delete", data={"confirm": "g"}, headers=BROWSER)
    assert (done.status_code, done.headers["Location"]) == (303, "/console/groups?topic=t")
    assert twin(read, "/console/groups")["groups"] == []
    # Between two pages: what is not there any more is said.
    assert read.client.get(GROUP, headers=BROWSER).status_code == 404
    again = read.client.post(f"{GROUP}/delete", data={"confirm": "g"}, headers=BROWSER)
    assert again.status_code == 404


def test_group_that_is_read_cannot_be_deleted_and_the_page_says_so(read: Site) -> None:
    held = read.client.get("/events/t/g/c?timeout=0")
    data = twin(read, GROUP)
    assert data["no_delete"] == "1 consumers read it: stop them first."
    (row,) = data["details"]["partitions"]
    assert row["holder"] == {"partition": -1, "node": "", "consumer": "c", "waiting": []}
    answer = read.client.post(f"{GROUP}/delete", data={"confirm": "g"}, headers=BROWSER)
    assert answer.status_code == 503
    held.close()


def test_reset_from_the_page_of_a_group_leads_back_to_it(read: Site) -> None:
    answer = read.client.post(RESET, data={"to": "latest", "back": "group"}, headers=BROWSER)
    assert (answer.status_code, answer.headers["Location"]) == (303, GROUP)


def test_store_that_tells_nothing_of_groups_is_greyed_out_with_the_reason(
    read: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotAllowedError("name its administration")

    monkeypatch.setattr(read.backend, "describe_topic", refuse)
    data = twin(read, GROUP)
    reason = "This store does not say where its groups stand: name its administration."
    assert (data["no_reset"], data["no_delete"]) == (reason, reason)
    page = read.client.get(GROUP, headers=BROWSER).text
    assert "<button disabled" in page
    assert 'id="reset"' not in page
    assert "name its administration" in twin(read, "/console/groups")["note"]


@pytest.mark.slow
def test_topic_of_many_partitions_and_groups_fits_into_its_pages(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t", "partitionCount": 64})
    topic = TopicName.parse("t")
    for number in range(600):
        site.backend.subscribe(Subscription(topic, f"g{number:03}"), Start.EARLIEST, 5)
    listed = twin(site, "/console/groups")
    assert (len(listed["groups"]), listed["left_out"]) == (500, 100)
    assert len(twin(site, "/console/groups?q=g59")["groups"]) == 10
    data = twin(site, "/console/topics/t/groups/g001")
    assert [row["partition"] for row in data["details"]["partitions"]] == list(range(64))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["50%", "a/b", "größe", "<b>x</b>", "a b", "%2F"])
def test_groups_of_any_name_have_a_page(read: Site, name: str) -> None:
    read.backend.subscribe(Subscription(TopicName.parse("t"), name), Start.EARLIEST, 5)
    path = f"/console/topics/t/groups/{quote(name, safe='')}"
    for listed in ("/console/groups", "/console/topics/t?tab=groups"):
        assert f'href="{path}"' in read.client.get(listed, headers=BROWSER).text
    sent = {"environ_overrides": {"RAW_URI": path}}
    page = read.client.get(path, headers=BROWSER, **sent).text
    assert escape(name) in page
    assert "<b>" not in page
    moved = {"environ_overrides": {"RAW_URI": f"{path}/reset"}}
    answer = read.client.post(f"{path}/reset", data={"to": "latest", "back": "group"}, **moved)
    assert (answer.status_code, answer.headers["Location"]) == (303, path)
