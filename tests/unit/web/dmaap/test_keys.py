"""The API of API keys, and requests that are signed with them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from router.errors import BackendUnavailableError
from router.web.access import management
from tests.unit.web.applications import HASHES, Site, header
from tests.unit.web.signing import Signer, signature

Sites = Callable[..., Site]
ROOTS = ["/apiKeys", "/v1/apiKeys"]


@pytest.mark.parametrize("root", ROOTS)
def test_key_is_made_shown_changed_and_deleted(site: Site, root: str) -> None:
    body = {"email": "a@example.org", "description": "d"}
    answer = site.client.post(f"{root}/create", json=body)
    made = answer.get_json()
    assert (answer.status_code, made["aux"], set(made)) == (
        200,
        body,
        {"key", "secret", "aux"},
    )
    assert (len(made["key"]), len(made["secret"])) == (16, 24)
    assert answer.headers["Cache-Control"] == "no-store"
    path, own = f"{root}/{made['key']}", signature(made["key"], made["secret"])
    assert site.client.get(root).get_json() == {"apiKeys": [made["key"]]}
    assert site.client.get(path).get_json() == {"key": made["key"], "aux": body}
    for method in ("PUT", "PATCH"):
        changed = site.client.open(path, method=method, json={"description": method}, headers=own)
        assert changed.get_json()["aux"] == body | {"description": method}
    deleted = site.client.delete(path, headers=own)
    assert (deleted.status_code, deleted.mimetype) == (200, "text/html")
    assert deleted.text == f"Api key [{made['key']}] deleted successfully."
    assert site.client.get(root).get_json() == {"apiKeys": []}


def told(site: Site, method: str, path: str, **more: object) -> tuple[int, int]:
    answer = site.client.open(path, method=method, **more)  # type: ignore[arg-type] # handed on
    body = answer.get_json()
    assert body["status"] == body["httpStatusCode"] == answer.status_code
    return body["status"], body["mrstatus"]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_key_is_changed_by_itself_alone(site: Site, method: str) -> None:
    own, other = Signer(site.client), Signer(site.client)
    path, body = f"/apiKeys/{own.key}", {"description": "x"}
    for headers in ({}, other.headers(), signature(own.key, other.secret)):
        assert told(site, method, path, json=body, headers=headers) == (404, 1004)
    assert site.client.get(path).get_json()["aux"]["description"] == "d"


def test_key_that_does_not_exist_is_not_found(site: Site) -> None:
    assert told(site, "GET", "/apiKeys/nobody") == (404, 1004)
    own = Signer(site.client)
    # The signature is still remembered when the key is gone.
    site.client.get(f"/apiKeys/{own.key}", headers=own.headers())
    site.node.registry.delete("key", own.key, 1)
    for method in ("PUT", "DELETE"):
        path = f"/apiKeys/{own.key}"
        assert told(site, method, path, json={}, headers=own.headers()) == (404, 1004)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"email": 7}', b'{"emial": "x"}', b'{"key": "mine"}']
)
def test_create_of_nonsense_is_refused(site: Site, body: bytes) -> None:
    assert told(site, "POST", "/apiKeys/create", data=body) == (400, 5005)
    assert site.client.get("/apiKeys").get_json() == {"apiKeys": []}


def test_texts_of_a_key_may_be_left_out(site: Site) -> None:
    made = site.client.post("/apiKeys/create", json={"email": None}).get_json()
    assert made["aux"] == {"email": "", "description": ""}


def test_keys_are_rationed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management, "MAX_KEYS_PER_MINUTE", 2)
    assert [site.client.post("/apiKeys/create", json={}).status_code for _ in range(3)] == [
        200,
        200,
        429,
    ]


def test_keys_are_rationed_for_all_addresses_of_a_client_together(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "MAX_KEYS_PER_MINUTE", 2)
    answers = [
        site.client.post(
            "/apiKeys/create",
            json={},
            environ_overrides={"REMOTE_ADDR": f"2001:db8:0:{network}::{number}"},
        ).status_code
        for network, number in ((1, 1), (1, 2), (1, 3), (2, 3))
    ]
    assert answers == [200, 200, 429, 200]


def test_key_is_good_at_every_worker_at_once(site: Site) -> None:
    other = site.worker()
    own = Signer(site.client)
    path = f"/apiKeys/{own.key}"
    changed = other.put(path, json={"email": "b@example.org"}, headers=own.headers())
    assert changed.get_json()["aux"]["email"] == "b@example.org"
    assert site.client.get(path).get_json() == changed.get_json()


def test_topic_is_its_creators(site: Site) -> None:
    own = Signer(site.client)
    site.client.post("/topics/create", json={"topicName": "t"}, headers=own.headers())
    assert site.client.get("/topics/t").get_json()["owner"] == own.key
    listed = site.worker().get("/topics/listAll").get_json()["topics"]
    assert listed == [{"topicName": "t", "owner": own.key, "txenabled": False}]


def test_wrong_signature_is_nobody_without_users(site: Site) -> None:
    own = Signer(site.client)
    stale = signature(own.key, own.secret, datetime.now(UTC) - timedelta(minutes=11))
    for number, headers in enumerate((stale, signature(own.key, "x"), signature("no", "x"))):
        body = {"topicName": f"t{number}"}
        made = site.client.post("/topics/create", json=body, headers=headers)
        assert (made.status_code, made.get_json()["owner"]) == (200, "")


@pytest.mark.parametrize("stale", [True, False])
def test_refusal_says_why_the_signature_makes_the_client_anonymous(
    sites: Sites, stale: bool
) -> None:
    site = sites(acl_enforce="true")
    own = Signer(site.client)
    site.client.post("/topics/create", json={"topicName": "t"}, headers=own.headers())
    at = datetime.now(UTC) - timedelta(minutes=11 if stale else 0)
    headers = signature(own.key, own.secret if stale else "wrong", at)
    reason = "The date of the signature is more than 600 seconds from this server's."
    for method, path, status in (
        ("PUT", f"/apiKeys/{own.key}", 404),
        ("PATCH", f"/apiKeys/{own.key}", 404),
        ("DELETE", f"/apiKeys/{own.key}", 404),
        ("POST", "/events/t", 403),
        ("GET", "/events/t/g/c?timeout=0", 403),
        ("DELETE", "/topics/t", 403),
        ("PUT", "/topics/t/producers/k", 403),
        ("POST", "/topics/public/default/t", 403),
    ):
        answer = site.client.open(path, method=method, data="{}", headers=headers)
        assert answer.status_code == status, path
        assert "Its signature is refused: " in answer.text, path
        assert (reason in answer.text) == stale, path
        assert "signature" not in site.client.open(path, method=method, data="{}").text


def test_window_of_the_original_may_be_set(sites: Sites) -> None:
    site = sites(auth_hmac_window="69d")
    own = Signer(site.client)
    headers = signature(own.key, own.secret, datetime.now(UTC) - timedelta(days=68))
    body = {"topicName": "t"}
    made = site.client.post("/topics/create", json=body, headers=headers)
    assert made.get_json()["owner"] == own.key


@pytest.fixture
def guarded(sites: Sites, tmp_path: Path) -> Site:
    users = tmp_path / "users"
    users.write_text(f"ann:{HASHES['argon2']}\n")
    return sites(auth_users=str(users), auth_admin_secret="very secret")


ANN = {"Authorization": header("ann", "secret")}


def test_users_are_demanded_for_keys_too(guarded: Site) -> None:
    for method, path in (("GET", "/apiKeys"), ("POST", "/apiKeys/create"), ("GET", "/apiKeys/x")):
        assert told(guarded, method, path, json={}) == (401, 4001)
    own = Signer(guarded.client, **ANN)
    assert guarded.client.get("/apiKeys", headers=own.headers()).status_code == 200


def test_wrong_signature_is_refused_with_users(guarded: Site) -> None:
    own = Signer(guarded.client, **ANN)
    stale = signature(own.key, own.secret, datetime.now(UTC) - timedelta(minutes=11))
    for headers in (stale, signature(own.key, "x"), signature("nobody", "x")):
        assert told(guarded, "POST", "/events/t", data="x", headers=headers) == (401, 4001)
        # A password that comes along counts by itself.
        both = guarded.client.post("/events/t", data="x", headers=headers | ANN)
        assert both.status_code == 200
    sent = guarded.client.post("/events/t", data="x", headers=own.headers())
    assert sent.status_code == 200


def test_user_with_a_keys_name_is_not_the_key(sites: Sites, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"ann:{HASHES['argon2']}\n")
    site = sites(auth_users=str(users))
    site.node.registry.put("key", "ann", b'{"secret":"s"}', 0, 1)
    assert told(site, "DELETE", "/apiKeys/ann", headers=ANN) == (404, 1004)


def test_administrator_may_delete_every_key(guarded: Site) -> None:
    own = Signer(guarded.client, **ANN)
    admin = signature("admin", "very secret")
    assert told(guarded, "DELETE", f"/apiKeys/{own.key}", headers=ANN) == (404, 1004)
    assert guarded.client.delete(f"/apiKeys/{own.key}", headers=admin).status_code == 200


@pytest.mark.slow
def test_client_certificate_is_a_name(guarded: Site) -> None:
    shown = {"router.client_name": "device-7"}
    made = guarded.client.post("/topics/create", json={"topicName": "t"}, environ_overrides=shown)
    assert made.get_json()["owner"] == "device-7"


def test_signed_publish_goes_on_while_the_registry_is_away(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, stranger = Signer(site.client), Signer(site.client)
    sent = {"data": "x", "headers": own.headers()}
    assert site.client.post("/events/t", **sent).status_code == 200

    def away(*_: object) -> None:
        raise BackendUnavailableError

    monkeypatch.setattr(site.node.registry, "get", away)
    assert site.client.post("/events/t", **sent).status_code == 200
    assert told(site, "POST", "/events/t", data="x", headers=stranger.headers()) == (503, 3002)
