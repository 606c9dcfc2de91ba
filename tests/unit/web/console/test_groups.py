"""The page of all groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.model import SubscriptionStats, TopicName
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
        {"group": "g", "topic": "t", "lag": 1, "members": 0, "may_reset": True},
        {"group": "h", "topic": "u", "lag": 0, "members": 0, "may_reset": True},
    ]
    assert [row["group"] for row in twin(read, "/console/groups?q=H")["groups"]] == ["h"]
    assert [row["group"] for row in twin(read, "/console/groups?topic=t")["groups"]] == ["g"]
    page = read.client.get("/console/groups", headers=BROWSER).text
    assert 'aria-label="Groups"' in page
    assert f'action="{RESET}"' in page


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
    ],
)
def test_preview_says_what_would_change_and_changes_nothing(read: Site, to: str, told: str) -> None:
    assert twin(read, f"{RESET}?{to}")["preview"] == told
    assert told in read.client.get(f"{RESET}?{to}", headers=BROWSER).text
    assert twin(read, "/console/groups")["groups"][0]["lag"] == 1


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ({"to": "earliest"}, ["a", "b", "c"]),
        ({"to": "latest"}, []),
        ({"to": "time", "time": "1970-01-01T00:00:01Z"}, ["a", "b", "c"]),
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


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/console/topics/absent/groups/g/reset", 404),
        ("GET", "/console/topics/t/groups/absent/reset", 404),
        ("POST", "/console/topics/t/groups/absent/reset", 404),
        ("GET", RESET + "?to=yesterday", 400),
        ("GET", RESET + "?to=time&time=noon", 400),
        ("GET", "/console/topics/t/groups/%3Cb%3E/reset", 400),
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
