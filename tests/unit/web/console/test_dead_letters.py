"""The pages of dead-letter topics, and the same over the API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.backends import Batch
from router.errors import NotAllowedError
from router.model import Message, TopicInfo, TopicName
from tests.unit.web.applications import HASHES, Site, header

BROWSER = {"Accept": "text/html"}
DEAD = TopicName.parse("orders.dlq")
PAGE = "/console/dead-letters/orders.dlq"
API = "/dead-letters/orders.dlq"
NOTES = {"router-topic": "orders", "router-error": "<b>no JSON</b>", "router-position": "1:2"}


def bury(site: Site, *values: bytes, **notes: str) -> None:
    messages = [Message(value, b"k", NOTES | notes) for value in values]
    site.backend.publish(Batch(DEAD, -1, messages), 1)


@pytest.fixture
def dead(site: Site) -> Site:
    """A topic, and three letters that came from it."""
    prepare(site)
    return site


def prepare(site: Site) -> None:
    for topic in (DEAD, TopicName.parse("orders")):
        site.backend.create_topic(TopicInfo(topic), 1)
    bury(site, b"1", b"2", b"\xff\xfe")


def twin(site: Site, path: str) -> dict[str, Any]:
    answer = site.client.get(path, headers={"Accept": "application/json"})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.get_json()
    return found


def test_topics_are_listed_with_how_many_letters_wait(dead: Site) -> None:
    assert twin(dead, "/console/dead-letters")["topics"] == [
        {"topic": "orders.dlq", "waiting": 3, "stored": 3}
    ]
    page = dead.client.get("/console/dead-letters", headers=BROWSER).text
    assert f'href="{PAGE}"' in page
    assert twin(dead, "/dead-letters") == {"topics": twin(dead, "/console/dead-letters")["topics"]}
    assert "/console/dead-letters" in dead.client.get("/console/groups", headers=BROWSER).text


def test_letters_are_shown_with_their_reason_as_text(dead: Site) -> None:
    data = twin(dead, PAGE)
    assert [dead_letter["value"] for dead_letter in data["letters"]] == ["1", "2", "ff fe"]
    dead_letter = data["letters"][0]
    assert (dead_letter["from"], dead_letter["from_position"], dead_letter["key"]) == (
        "orders",
        "1:2",
        "k",
    )
    assert (dead_letter["reason"], dead_letter["obstacle"]) == ("<b>no JSON</b>", "")
    page = dead.client.get(PAGE, headers=BROWSER).text
    assert "&lt;b&gt;no JSON" in page
    assert "<b>" not in page
    assert f'name="letter-{dead_letter["id"]}"' in page


def test_headers_of_a_letter_are_those_of_its_publisher(dead: Site) -> None:
    bury(dead, b"4", **{"a": "1", "router-publish-time": "86400000"})
    dead_letter = twin(dead, PAGE)["letters"][3]
    assert dead_letter["headers"] == {"a": "1"}
    assert dead_letter["notes"]["Original publish time"] == "1970-01-02 00:00:00.000Z"
    message = f"/console/topics/orders.dlq/messages/{dead_letter['id']}"
    found = twin(dead, f"{message}?format=json")
    assert (found["headers"], found["notes"]) == ([["a", "1"]], dead_letter["notes"])
    page = dead.client.get(message, headers=BROWSER).text
    assert "Delivery" in page
    assert "router-error" not in page


def test_chosen_letters_are_requeued_and_the_page_says_so(dead: Site) -> None:
    dead_letter = twin(dead, PAGE)["letters"][1]
    form = {"which": "selected", f"letter-{dead_letter['id']}": "on"}
    answer = dead.client.post(f"{PAGE}/requeue", data=form, headers=BROWSER)
    assert (answer.status_code, answer.headers["Location"]) == (303, f"{PAGE}?done=1&left=0")
    page = dead.client.get(answer.headers["Location"], headers=BROWSER).text
    assert "1 done." in page
    assert [one["value"] for one in twin(dead, PAGE)["letters"]] == ["1", "ff fe"]
    assert dead.poll("/events/orders/g/c").get_json() == ["2"]


def test_a_form_that_discards_all_letters_is_asked_once_more(dead: Site) -> None:
    form = {"which": "all"}
    asked = dead.client.post(f"{PAGE}/discard", data=form, headers=BROWSER)
    assert (asked.status_code, asked.mimetype) == (200, "text/html")
    assert len(twin(dead, PAGE)["letters"]) == 3
    done = dead.client.post(f"{PAGE}/discard", data=form | {"confirm": "yes"}, headers=BROWSER)
    assert (done.status_code, twin(dead, PAGE)["letters"]) == (303, [])


@pytest.mark.slow
def test_all_letters_are_discarded(dead: Site) -> None:
    found = dead.client.post(f"{PAGE}/discard?format=json", data={"which": "all"}).get_json()
    assert (found["done"], found["refused"], found["more"]) == (3, {}, False)
    assert found["commands"] == [
        f"curl -X POST 'http://localhost{API}/discard?all'",
        "router dead-letters discard orders.dlq --all",
    ]
    assert twin(dead, PAGE)["letters"] == []
    assert twin(dead, "/console/dead-letters")["topics"][0]["waiting"] == 0


def test_calls_go_on_where_the_last_one_ended(dead: Site) -> None:
    first = twin(dead, f"{API}?limit=2")
    assert [dead_letter["message"]["value"] for dead_letter in first["letters"]] == ["1", "2"]
    assert first["more"] is True
    rest = twin(dead, f"{API}?limit=2&behind={first['behind']}")
    assert [dead_letter["reason"] for dead_letter in rest["letters"]] == ["<b>no JSON</b>"]
    assert rest["more"] is False
    form = {"which": "all", "behind": first["behind"], "before": "4000000000000"}
    found = dead.client.post(f"{PAGE}/discard?format=json", data=form).get_json()
    assert (found["done"], found["before"]) == (1, 4_000_000_000_000)


def test_api_requeues_and_discards(dead: Site) -> None:
    dead_letters = twin(dead, API)["letters"]
    done = dead.client.post(f"{API}/requeue?position={dead_letters[0]['id']}").get_json()
    assert (done["topic"], done["done"], done["failure"]) == ("orders.dlq", 1, "")
    assert dead.client.post(f"{API}/discard?all").get_json()["done"] == 2
    assert twin(dead, API)["letters"] == []
    assert dead.poll("/events/orders/g/c").get_json() == ["1"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{API}/requeue", 400),
        (f"{API}/requeue?position=5", 400),
        (f"{API}/discard?all&behind=x", 400),
        ("/dead-letters/absent/requeue?all", 404),
        ("/dead-letters/absent/discard?position=5:17:0", 404),
    ],
)
def test_calls_that_cannot_be_read_are_refused(dead: Site, path: str, status: int) -> None:
    assert dead.client.post(path).status_code == status
    assert len(twin(dead, API)["letters"]) == 3


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"x": ""}, 400),
        ({"which": "some"}, 400),
        ({"which": "selected"}, 400),
        ({"letter-x": "on"}, 400),
    ],
)
def test_forms_that_choose_nothing_are_refused(
    dead: Site, form: dict[str, str], status: int
) -> None:
    assert dead.client.post(f"{PAGE}/requeue", data=form).status_code == status
    assert len(twin(dead, API)["letters"]) == 3


def test_store_that_tells_no_positions_is_greyed_out_with_the_reason(
    dead: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise NotAllowedError("name its administration")

    monkeypatch.setattr(dead.backend, "cursors", refuse)
    assert "name its administration" in twin(dead, PAGE)["no_change"]
    assert "<fieldset disabled" in dead.client.get(PAGE, headers=BROWSER).text


@pytest.mark.slow
@pytest.mark.parametrize("sent", [{"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}])
def test_requeue_from_another_site_is_refused(dead: Site, sent: dict[str, str]) -> None:
    answer = dead.client.post(f"{PAGE}/requeue", data={"which": "all"}, headers=sent)
    assert answer.status_code == 403
    assert len(twin(dead, API)["letters"]) == 3


RULES = """reader orders.dlq subscribe
keeper orders.dlq subscribe
keeper orders.dlq manage
writer orders.dlq subscribe
writer orders.dlq manage
writer orders publish
"""


@pytest.mark.parametrize(
    ("user", "statuses", "refused"),
    [
        ("reader", (200, 403, 403), None),
        ("keeper", (200, 200, 200), "You may not publish to orders."),
        ("writer", (200, 200, 200), ""),
        ("stranger", (403, 403, 403), None),
    ],
)
def test_rights_are_those_of_reading_managing_and_publishing(
    sites: Callable[..., Site],
    tmp_path: Path,
    user: str,
    statuses: tuple[int, ...],
    refused: str | None,
) -> None:
    users, rules = tmp_path / "users", tmp_path / "rules"
    names = ("reader", "keeper", "writer", "stranger")
    users.write_text("".join(f"{name}:{HASHES['bcrypt']}\n" for name in names))
    rules.write_text(RULES)
    site = sites(auth_users=str(users), auth_permissions=str(rules))
    prepare(site)
    asker = {"Authorization": header(user, "secret"), "Accept": "application/json"}
    looked = site.client.get(PAGE, headers=asker)
    requeued = site.client.post(f"{PAGE}/requeue", data={"which": "all"}, headers=asker)
    discarded = site.client.post(f"{PAGE}/discard", data={"which": "all"}, headers=asker)
    assert (looked.status_code, requeued.status_code, discarded.status_code) == statuses
    if refused is not None:
        assert set(requeued.get_json()["refused"].values()) == ({refused} if refused else set())
    api = [
        site.client.get(API, headers=asker).status_code,
        site.client.post(f"{API}/requeue?all", headers=asker).status_code,
        site.client.post(f"{API}/discard?all", headers=asker).status_code,
    ]
    assert tuple(api) == statuses
