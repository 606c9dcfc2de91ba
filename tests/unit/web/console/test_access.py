"""The pages of users, access lists and API keys."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.web.access import management
from tests.unit.web.applications import Site, header
from tests.unit.web.console.signing import BROWSER, JSON, PASSWORD, Browser, users_file
from tests.unit.web.signing import signature

Sites = Callable[..., Site]
RULES = """
ops   *         publish subscribe manage
anna  orders.*  publish, subscribe
team  *         subscribe
*     public.*  subscribe
"""


@pytest.fixture
def site(sites: Sites, tmp_path: Path) -> Site:
    """Users anna and ops, of whom ops administers; `orders.eu` is open, `private` is of ops."""
    users = users_file(tmp_path, anna=PASSWORD, ops=PASSWORD)
    (tmp_path / "permissions").write_text(RULES)
    site = sites(auth_users=str(users), auth_permissions=str(tmp_path / "permissions"))
    for name in ("orders.eu", "private"):
        site.client.post("/topics/create", json={"topicName": name}, headers=known("ops"))
    return site


def known(name: str) -> dict[str, str]:
    return {"Authorization": header(name, PASSWORD)}


def data(site: Site, path: str, user: str = "ops") -> Any:
    answer = site.client.get(path, headers=JSON | known(user))
    assert answer.status_code == 200, answer.text
    return answer.get_json()


def page(site: Site, path: str, user: str = "ops") -> str:
    answer = site.client.get(path, headers=BROWSER | known(user))
    assert answer.status_code == 200, answer.text
    return answer.text


def post(site: Site, path: str, user: str, **form: str) -> Any:
    return site.client.post(path, data=form, headers=JSON | known(user))


def test_administrator_sees_all_users_with_their_permissions(site: Site) -> None:
    found = data(site, "/console/access")
    assert found["users"] == [
        {"name": "anna", "has_password": True, "permissions": ["orders.*: publish, subscribe"]},
        {"name": "ops", "has_password": True, "permissions": ["*: publish, subscribe, manage"]},
        {"name": "team", "has_password": False, "permissions": ["*: subscribe"]},
    ]
    assert found["everybody"] == ["public.*: subscribe"]
    assert [user["name"] for user in data(site, "/console/access?q=AN")["users"]] == ["anna"]
    assert "<code>orders.*: publish, subscribe</code>" in page(site, "/console/access")


def test_others_see_themselves(site: Site) -> None:
    found = data(site, "/console/access", "anna")
    assert [user["name"] for user in found["users"]] == ["anna"]
    text = page(site, "/console/access", "anna")
    assert "Other users are shown to administrators alone." in text
    assert "team" not in text


def test_no_page_has_a_hash(site: Site, tmp_path: Path) -> None:
    hashes = [line.partition(":")[2] for line in (tmp_path / "users").read_text().splitlines()]
    for text in (page(site, "/console/access"), str(data(site, "/console/access"))):
        assert not [found for found in hashes if found in text or found[-20:] in text]


def test_permissions_of_aaf_are_shown_as_they_are_written(sites: Sites, tmp_path: Path) -> None:
    (tmp_path / "aaf").write_text("ops *|*|*\nanna org.onap.dmaap.mr|create\n")
    users = users_file(tmp_path, anna=PASSWORD, ops=PASSWORD)
    site = sites(auth_users=str(users), auth_aaf=str(tmp_path / "aaf"))
    shown = {user["name"]: user["permissions"] for user in data(site, "/console/access")["users"]}
    assert shown == {"anna": ["org.onap.dmaap.mr|create"], "ops": ["*|*|*"]}


def test_router_without_users_says_that_it_asks_for_no_name(sites: Sites) -> None:
    text = sites().client.get("/console/access", headers=BROWSER).text
    assert "This router has no users" in text


def test_topics_have_owner_and_lists_for_those_who_see_them(site: Site) -> None:
    post(site, "/console/access/topics/orders.eu/consumers", "ops", change="add", name="anna")
    row = {"topic": "orders.eu", "owner": "ops", "producers": [], "consumers": ["anna"]}
    assert row in data(site, "/console/access/topics")["topics"]
    assert data(site, "/console/access/topics", "anna")["topics"] == [row]
    assert data(site, "/console/access/topics?q=nothing")["topics"] == []
    for path in ("private", "nowhere"):
        refused = site.client.get(f"/console/access/topics/{path}", headers=JSON | known("anna"))
        assert refused.status_code == 403


@pytest.mark.parametrize("role", ["producers", "consumers"])
def test_owner_changes_lists_as_the_api_does(site: Site, role: str) -> None:
    path = f"/console/access/topics/private/{role}"
    answer = post(site, path, "ops", change="add", name="a b")
    assert answer.status_code == 400
    answer = post(site, path, "ops", change="add", name="billing")
    assert answer.status_code == 200
    assert answer.get_json()["commands"] == [
        f"curl -u ops -X PUT http://localhost/topics/private/{role}/billing"
    ]
    api = site.client.get(f"/topics/private/{role}", headers=known("ops")).get_json()
    assert api["users"] == ["billing"]
    assert "Remove billing" in page(site, "/console/access/topics/private")
    assert post(site, path, "ops", change="remove", name="billing").status_code == 200
    assert data(site, "/console/access/topics/private")[role] == []


def test_topic_without_owner_names_whom_the_file_of_permissions_lets(site: Site) -> None:
    site.post("/events/orders.us", "a", headers=known("anna"))
    found = data(site, "/console/access/topics/orders.us", "anna")
    assert found["permitted"] == {
        "producers": ["anna", "ops"],
        "consumers": ["anna", "ops", "team"],
    }
    assert "names anna, ops." in page(site, "/console/access/topics/orders.us", "anna")
    owned = data(site, "/console/access/topics/orders.eu")
    assert owned["permitted"] == {"producers": [], "consumers": []}


def test_others_change_no_list_and_see_why(site: Site) -> None:
    text = page(site, "/console/access/topics/orders.eu", "anna")
    assert len(re.findall(r"<button[^>]*disabled title", text)) == 2
    assert "changed by the owner and by administrators" in text
    path = "/console/access/topics/orders.eu/producers"
    assert post(site, path, "anna", change="add", name="anna").status_code == 403
    assert data(site, "/console/access/topics/orders.eu")["producers"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "form", "status"),
    [
        ("private/readers", {"change": "add", "name": "x"}, 400),
        ("private/producers", {"change": "both", "name": "x"}, 400),
        ("private/producers", {"change": "add"}, 400),
        ("private/producers", {"change": "add", "name": ""}, 400),
        ("nowhere/producers", {"change": "add", "name": "x"}, 404),
    ],
)
def test_change_that_cannot_be_made_is_refused(
    site: Site, path: str, form: dict[str, str], status: int
) -> None:
    assert post(site, f"/console/access/topics/{path}", "ops", **form).status_code == status


def test_secret_of_a_new_key_is_shown_once(site: Site) -> None:
    browser = Browser(site)
    browser.sign_in("anna")
    form = {"email": "a@b.example", "description": "<b>", "csrf_token": browser.token()}
    made = browser.open("/console/access/keys", "POST", data=form)
    assert (made.status_code, made.headers["Cache-Control"]) == (200, "no-store")
    key, secret = re.findall(r"<dd><code>(\w+)</code></dd>", made.text)
    assert "&lt;b&gt;" in made.text
    for path in ("/console/access/keys", f"/console/access/keys/{key}"):
        text = browser.open(path).text
        assert key in text
        assert secret not in text
        assert secret not in str(data(site, path))
    signed = site.client.get("/topics", headers=signature(key, secret))
    assert signed.status_code == 200


def test_new_keys_are_rationed_with_those_of_the_api(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "MAX_KEYS_PER_MINUTE", 2)
    assert post(site, "/console/access/keys", "anna", email="").status_code == 200
    assert site.client.post("/apiKeys/create", json={}, headers=known("anna")).status_code == 200
    answer = post(site, "/console/access/keys", "anna", email="")
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 0


def test_key_is_changed_and_deleted_by_administrators(site: Site) -> None:
    key = post(site, "/console/access/keys", "anna", email="a@b").get_json()["key"]
    path = f"/console/access/keys/{key}"
    text = page(site, path, "anna")
    assert "changed and deleted by itself and by administrators" in text
    assert '<button class="danger" disabled>' in text
    assert post(site, path, "anna", email="x", description="").status_code == 403
    assert post(site, f"{path}/delete", "anna", x="").status_code == 403
    changed = post(site, path, "ops", email="c@d", description="of billing").get_json()
    assert changed == {"key": key, "email": "c@d", "description": "of billing"}
    assert post(site, f"{path}/delete", "ops", x="").status_code == 200
    assert post(site, f"{path}/delete", "ops", x="").status_code == 404
    assert site.client.get(path, headers=JSON | known("ops")).status_code == 404


def test_key_changes_and_deletes_itself(site: Site) -> None:
    made = post(site, "/console/access/keys", "anna", email="").get_json()
    path, signed = f"/console/access/keys/{made['key']}", signature(made["key"], made["secret"])
    other = post(site, "/console/access/keys", "anna", email="").get_json()["key"]
    form = {"email": "", "description": "mine"}
    assert site.client.post(path, data=form, headers=JSON | signed).status_code == 200
    refused = site.client.post(f"/console/access/keys/{other}", data=form, headers=JSON | signed)
    assert refused.status_code == 403
    assert site.client.post(f"{path}/delete", headers=JSON | signed, data={}).status_code == 200


def test_lists_of_many_rows_are_turned(site: Site) -> None:
    view: Any = site.app.view_functions["keys.create"]
    for _ in range(51):
        view.__self__.keys._keys.create("", "")
    found = data(site, "/console/access/keys?page=2")
    assert (found["page"], found["pages"], found["found"], len(found["keys"])) == (2, 2, 51, 1)
    assert "Page 2 of 2, 51 found" in page(site, "/console/access/keys?page=2&q=")
