"""The page of all topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.web.applications import HASHES, Site, header

BROWSER = {"Accept": "text/html"}


def test_topics_are_told_with_what_they_hold(site: Site) -> None:
    site.post("/events/orders", "a\nb")
    site.poll("/events/orders/g/c")
    found = site.client.get("/console/topics?format=json").get_json()
    [topic] = found["topics"]
    assert topic.pop("bytes") > 0
    assert topic.pop("chart")["kind"] == "rate"
    assert topic == {
        "name": "orders",
        "partitions": 1,
        "retention": "default",
        "messages": 2,
        "rate": None,
        "groups": 1,
    }
    page = site.client.get("/console/topics", headers=BROWSER).text
    assert '<a href="/console/topics/orders?tab=messages">orders</a>' in page
    assert 'aria-label="Topics"' in page


def test_topics_are_searched_and_paged_by_the_address(site: Site) -> None:
    for number in range(51):
        site.client.post("/topics/create", json={"topicName": f"t{number:02}"})
    site.client.post("/topics/create", json={"topicName": "Orders"})
    found = site.client.get("/console/topics?q=ORD&format=json").get_json()
    assert [topic["name"] for topic in found["topics"]] == ["Orders"]
    second = site.client.get("/console/topics?q=t&page=2&format=json").get_json()
    assert ([topic["name"] for topic in second["topics"]], second["pages"]) == (["t50"], 2)
    assert "page=2" in site.client.get("/console/topics?q=t", headers=BROWSER).text


@pytest.mark.parametrize("search", ["<script>alert(1)</script>", '"><img src=x onerror=y>', "%FF"])
def test_what_is_searched_for_is_shown_as_text(site: Site, search: str) -> None:
    page = site.client.get("/console/topics", query_string={"q": search}, headers=BROWSER)
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "<img" not in page.text


def test_form_creates_a_topic_and_leads_to_it(site: Site) -> None:
    answer = site.client.post(
        "/console/topics", data={"name": "orders", "partitions": "3"}, headers=BROWSER
    )
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/topics/orders")
    assert site.client.get("/topics/orders").get_json()["partitionCount"] == 3


def test_form_creates_a_compacted_topic(site: Site) -> None:
    fields = {"name": "prices", "cleanup": "compact"}
    found = site.client.post("/console/topics?format=json", data=fields).get_json()
    assert found["commands"] == [
        "curl -H 'Content-Type: application/json' -d "
        '\'{"topicName":"prices","cleanupPolicy":"compact"}\''
        " http://localhost/topics/create",
        "router topics create prices --cleanup-policy compact",
    ]
    assert site.client.get("/topics/prices").get_json()["cleanupPolicy"] == "compact"
    refused = site.client.post(
        "/console/topics?format=json", data={"name": "x", "cleanup": "compress"}
    )
    assert refused.status_code == 400


def test_form_with_script_gets_the_commands_of_what_it_did(site: Site) -> None:
    answer = site.client.post("/console/topics?format=json", data={"name": "orders"})
    found = answer.get_json()
    assert found["created"]
    assert found["commands"] == [
        "curl -H 'Content-Type: application/json' -d '{\"topicName\":\"orders\"}'"
        " http://localhost/topics/create",
        "router topics create orders",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"name": "a b"}, 400),
        ({"name": ""}, 400),
        ({"other": "x"}, 400),
        ({"name": "t", "partitions": "many"}, 400),
        ({"name": "t", "partitions": "1001"}, 400),
        ({"name": "a%41"}, 400),
    ],
)
def test_form_that_cannot_be_read_is_400(site: Site, form: dict[str, str], status: int) -> None:
    answer = site.client.post("/console/topics?format=json", data=form)
    assert (answer.status_code, answer.mimetype) == (status, "application/problem+json")
    assert site.client.get("/topics").get_json() == {"topics": []}


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"name=%ff", "application/x-www-form-urlencoded", 400),
        (b"\xff", "application/x-www-form-urlencoded", 400),
        (b"a=1&" * 51, "application/x-www-form-urlencoded", 400),
        (b"x" * (2 * 1024 * 1024 + 1), "application/x-www-form-urlencoded", 413),
        (b'{"name":"t"}', "application/json", 415),
        (b"name=t", "text/plain", 415),
    ],
)
def test_body_that_is_no_form_is_refused(site: Site, body: bytes, kind: str, status: int) -> None:
    answer = site.client.post("/console/topics", data=body, content_type=kind)
    assert answer.status_code == status


@pytest.mark.parametrize(
    "sent",
    [
        {"Origin": "https://pages.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_form_of_another_site_is_refused(site: Site, sent: dict[str, str]) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    for path, form in (
        ("/console/topics", {"name": "new"}),
        ("/console/topics/t/delete", {"confirm": "t"}),
    ):
        answer = site.client.post(path, data=form, headers=BROWSER | sent)
        assert (answer.status_code, answer.mimetype) == (403, "text/html")
    assert site.client.get("/topics").get_json() == {"topics": ["t"]}


def test_topic_is_deleted_by_its_name_written_again(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t"})
    assert site.client.post("/console/topics/t/delete", data={"confirm": "u"}).status_code == 400
    answer = site.client.post("/console/topics/t/delete", data={"confirm": "t"}, headers=BROWSER)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/topics")
    assert site.client.get("/topics").get_json() == {"topics": []}


def test_rights_are_those_of_the_api(sites: Callable[..., Site], tmp_path: Path) -> None:
    users, rules = tmp_path / "users", tmp_path / "rules"
    users.write_text("".join(f"{name}:{HASHES['bcrypt']}\n" for name in ("anna", "root")))
    rules.write_text("anna t subscribe\nroot * manage\n")
    site = sites(auth_users=str(users), auth_permissions=str(rules))
    root, anna = ({"Authorization": header(name, "secret")} for name in ("root", "anna"))
    for name in ("t", "secret"):
        made = site.client.post("/console/topics", data={"name": name}, headers=root)
        assert made.status_code == 303
    found = site.client.get("/console/topics?format=json", headers=anna).get_json()
    assert [topic["name"] for topic in found["topics"]] == ["t"]
    refused = [
        site.client.post("/console/topics", data={"name": "mine"}, headers=anna),
        site.client.post("/console/topics/t/delete", data={"confirm": "t"}, headers=anna),
    ]
    assert [answer.status_code for answer in refused] == [403, 403]
