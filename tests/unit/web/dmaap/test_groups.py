"""The groups of a topic over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from router.backends import Start
from router.model import Subscription, TopicName
from tests.unit.web.applications import HASHES, Site, header

RULES = "reader t subscribe\nchief t manage\nnobody other subscribe\n"


def test_groups_are_told_with_their_backlog(site: Site) -> None:
    site.client.post("/topics/create", json={"topicName": "t", "partitionCount": 2})
    site.poll()
    site.post("/events/t", "a\nb\nc")
    site.client.get("/events/t/other/c?timeout=0&from=latest")
    answer = site.client.get("/topics/t/groups").get_json()
    first, second = answer.pop("groups")
    assert answer == {"topic": "t"}
    assert sorted(one.pop("backlog") for one in first["partitions"]) == [0, 3]
    assert first == {
        "name": "g",
        "backlog": 3,
        "consumers": 0,
        "durable": True,
        "partitions": [{"partition": 0, "consumers": 0}, {"partition": 1, "consumers": 0}],
    }
    assert (second["name"], second["backlog"]) == ("other", 0)


@pytest.mark.parametrize(
    ("to", "told"), [("earliest", "earliest"), ("0", 0), ("1970-01-01T00:00:01Z", 1000)]
)
def test_a_reset_group_gets_everything_again(site: Site, to: str, told: str | int) -> None:
    site.post("/events/t", "a\nb")
    assert site.poll().get_json() == ["a", "b"]
    assert site.poll().get_json() == []
    answer = site.client.post(f"/topics/t/groups/g/reset?to={to}")
    assert (answer.status_code, answer.get_json()) == (
        200,
        {"topic": "t", "group": "g", "to": told},
    )
    assert site.poll().get_json() == ["a", "b"]


def test_a_group_reset_to_the_end_gets_what_comes(site: Site) -> None:
    site.post("/events/t", "before")
    site.poll()
    site.post("/events/t", "a")
    assert site.client.post("/topics/t/groups/g/reset?to=latest").status_code == 200
    site.post("/events/t", "b")
    assert site.poll().get_json() == ["b"]


def test_a_deleted_group_is_gone_and_made_anew_by_a_poll(site: Site) -> None:
    site.post("/events/t", "a")
    assert site.poll().get_json() == ["a"]
    answer = site.client.delete("/topics/t/groups/g")
    assert (answer.status_code, answer.text) == (200, "Group [g] of topic [t] deleted successfully")
    assert site.client.get("/topics/t/groups").get_json()["groups"] == []
    assert site.poll().get_json() == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/topics/absent/groups", 404, 3001),
        ("POST", "/topics/absent/groups/g/reset?to=latest", 404, 3001),
        ("DELETE", "/topics/absent/groups/g", 404, 3001),
        ("POST", "/topics/t/groups/absent/reset?to=latest", 404, 5008),
        ("DELETE", "/topics/t/groups/absent", 404, 5008),
        ("POST", "/topics/t/groups/g/reset", 400, 3010),
        ("POST", "/topics/t/groups/g/reset?to=2026-07-31", 400, 3010),
        ("POST", "/topics/t/groups/bad%20name/reset?to=latest", 404, 5008),
        ("GET", "/topics/t/groups/g/reset", 405, 3003),
    ],
)
def test_refusals_are_told_in_the_usual_body(
    site: Site, method: str, path: str, status: int, code: int
) -> None:
    site.post("/events/t", "a")
    site.poll()
    answer = site.client.open(path, method=method)
    assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (status, code)


def test_a_group_that_is_polled_now_is_not_deleted(site: Site) -> None:
    site.post("/events/t", "a")
    held = site.client.get("/events/t/g/c?timeout=0&from=earliest")
    answer = site.client.delete("/topics/t/groups/g")
    assert (answer.status_code, answer.get_json()["mrErrorCode"]) == (503, 3002)
    assert answer.headers["Retry-After"] == "1"
    held.close()
    assert site.client.delete("/topics/t/groups/g").status_code == 200


def test_a_new_group_starts_at_the_time_asked_for(site: Site) -> None:
    site.post("/events/t", "a")
    for start, expected in (("1970-01-01T00:00:00%2B00:00", ["a"]), ("99999999999999", [])):
        answer = site.client.get(f"/events/t/{start[:4]}/c?timeout=0&from={start}", buffered=True)
        assert answer.get_json() == expected
    refused = site.client.get("/events/t/new/c?timeout=0&from=now")
    assert (refused.status_code, refused.get_json()["mrErrorCode"]) == (400, 3010)


@pytest.mark.parametrize(
    ("user", "statuses"),
    [("reader", (200, 403, 403)), ("chief", (200, 200, 200)), ("nobody", (403, 403, 403))],
)
def test_changing_a_group_needs_the_right_to_manage(
    sites: Callable[..., Site], tmp_path: Path, user: str, statuses: tuple[int, ...]
) -> None:
    users, permissions = tmp_path / "users", tmp_path / "permissions"
    users.write_text(
        "".join(f"{name}:{HASHES['apr1']}\n" for name in ("reader", "chief", "nobody"))
    )
    permissions.write_text(RULES)
    site = sites(auth_users=str(users), auth_permissions=str(permissions))
    own = {"Authorization": header(user, "secret")}
    reader = {"Authorization": header("reader", "secret")}
    chief = {"Authorization": header("chief", "secret")}
    site.client.post("/topics/create", json={"topicName": "t"}, headers=chief)
    # The topic is the chief's, who has to let others in besides what the file grants.
    assert site.client.put("/topics/t/consumers/reader", headers=chief).status_code == 200
    assert site.poll(**reader).status_code == 200
    found = (
        site.client.get("/topics/t/groups", headers=own).status_code,
        site.client.post("/topics/t/groups/g/reset?to=latest", headers=own).status_code,
        site.client.delete("/topics/t/groups/g", headers=own).status_code,
    )
    assert found == statuses


def test_a_group_is_told_in_detail(site: Site) -> None:
    site.post("/events/t", "a\nb")
    site.poll()
    found = site.client.get("/topics/t/groups/g").get_json()
    assert (found["topic"], found["name"], found["backlog"]) == ("t", "g", 0)
    assert [member["consumer"] for member in found["members"]] == ["c"]
    (partition,) = found["partitions"]
    assert partition["committed"] == partition["first"]
    assert partition["end"].split(":")[1:] == ["1", "0"]
    assert site.client.get("/topics/t/groups/absent").status_code == 404
    assert site.client.get("/topics/absent/groups/g").status_code == 404


def test_a_group_is_reset_to_a_position_that_it_was_told(site: Site) -> None:
    for value in "abc":
        site.post("/events/t", value)
    assert site.poll().get_json() == ["a", "b", "c"]
    (partition,) = site.client.get("/topics/t/groups/g").get_json()["partitions"]
    url = f"/topics/t/groups/g/reset?to={partition['committed']}"
    told = site.client.post(f"{url}&preview").get_json()
    assert told["preview"] == {"lag": 0, "least": 1, "most": 1}
    assert site.poll().get_json() == []
    assert site.client.post(url).get_json() == {
        "topic": "t",
        "group": "g",
        "to": partition["committed"],
    }
    assert site.poll().get_json() == ["c"]
    refused = site.client.post("/topics/t/groups/g/reset?to=999:0:0")
    assert (refused.status_code, refused.get_json()["mrErrorCode"]) == (400, 5005)


WEIRD = ["50%", "a/b", "größe", "<b>x</b>", "a b", "..", "%2F", "'; rm -rf /"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIRD)
def test_groups_of_other_protocols_are_administered_whatever_their_names(
    site: Site, name: str
) -> None:
    site.post("/events/t", "a")
    site.backend.subscribe(Subscription(TopicName.parse("t"), name), Start.LATEST, 5)
    path = f"/topics/t/groups/{quote(name, safe='')}"
    sent = {"environ_overrides": {"RAW_URI": path}}
    assert site.client.get(path, **sent).get_json()["name"] == name
    reset = f"{path}/reset?to=earliest"
    sent = {"environ_overrides": {"RAW_URI": reset}}
    assert site.client.post(reset, **sent).get_json()["group"] == name
    (group,) = site.client.get("/topics/t/groups").get_json()["groups"]
    assert (group["name"], group["backlog"]) == (name, 1)
