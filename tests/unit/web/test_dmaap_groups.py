"""The groups of a topic over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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
        ("POST", "/topics/t/groups/bad%20name/reset?to=latest", 400, 5005),
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
