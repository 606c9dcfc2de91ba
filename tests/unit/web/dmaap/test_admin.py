"""Administration over HTTP: the blacklist, and who polls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.services import blacklist
from router.web.dmaap import admin as dmaap_admin
from tests.processes import wait_until
from tests.unit.web.applications import HASHES, Site, header
from tests.unit.web.signing import signature

Sites = Callable[..., Site]
ROOTS = ["/admin", "/v1/admin"]
STRANGER = "203.0.113.9"


def ask(
    site: Site, method: str, path: str, address: str = "127.0.0.1", **headers: str
) -> tuple[int, Any]:
    """Return the status of an answer and its body in JSON, if it has one."""
    answer = site.client.open(
        path,
        method=method,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        environ_overrides={"REMOTE_ADDR": address},
    )
    return answer.status_code, answer.get_json(silent=True)


@pytest.mark.slow
@pytest.mark.parametrize("root", ROOTS)
def test_blacklisted_address_is_served_nothing(site: Site, root: str) -> None:
    assert ask(site, "POST", f"{root}/blacklist/{STRANGER}") == (204, None)
    assert ask(site, "GET", f"{root}/blacklist") == (200, {"blacklist": [STRANGER]})
    for path in ("/topics", "/events/t/g/c", "/metrics", "/absent", "/apiKeys", "/healthy"):
        status, body = ask(site, "GET", path, STRANGER)
        assert (status, body["mrErrorCode"], body["mrstatus"]) == (403, 4002, 4002)
        assert body["message"] == (
            f"Source address [{STRANGER}] is blacklisted."
            " Please contact the cluster management team."
        )
        assert ask(site, "GET", path, "203.0.113.8")[0] != 403
    for path in ("/health", "/ready", "/health/"):
        assert ask(site, "GET", path, STRANGER)[0] == 200
    assert ask(site, "DELETE", f"{root}/blacklist/{STRANGER}") == (204, None)
    assert ask(site, "GET", "/topics", STRANGER)[0] == 200


@pytest.mark.parametrize("path", ["203.0.113.0/24", "203.0.113.0%2F24", "203.0.113.77/24"])
def test_networks_are_blacklisted_whole(site: Site, path: str) -> None:
    for method, status in (("POST", 403), ("DELETE", 200)):
        answer = site.client.open(
            f"/admin/blacklist/{path}",
            method=method,
            environ_overrides={"RAW_URI": f"/admin/blacklist/{path}", "REMOTE_ADDR": "::1"},
        )
        assert answer.status_code == 204
        assert ask(site, "GET", "/topics", STRANGER)[0] == status
        assert ask(site, "GET", "/topics", "203.0.114.9")[0] == 200


@pytest.mark.parametrize("path", ["x", "10.0.0.1/40", "10.0.0.1%25eth0", "10.0.0.1/8/8"])
def test_what_is_no_address_is_refused(site: Site, path: str) -> None:
    status, body = ask(site, "POST", f"/admin/blacklist/{path}")
    assert (status, body["mrstatus"]) in {(400, 5005), (404, 3001)}
    assert ask(site, "GET", "/admin/blacklist") == (200, {"blacklist": []})


def test_address_that_is_not_listed_cannot_be_taken_off(site: Site) -> None:
    assert ask(site, "DELETE", "/admin/blacklist/10.0.0.1")[0] == 404


def test_nobody_locks_out_the_administrators(sites: Sites) -> None:
    site = sites(auth_admin_secret="very secret")
    admin = signature("admin", "very secret")
    for network in ("127.0.0.0/8", "0.0.0.0/0"):
        assert ask(site, "POST", f"/admin/blacklist/{network}")[0] == 204
    assert ask(site, "GET", "/topics")[0] == 403
    status, body = ask(site, "GET", "/admin/blacklist", STRANGER)
    assert (status, "is blacklisted" in body["message"]) == (403, True)
    assert ask(site, "DELETE", "/admin/blacklist/0.0.0.0/0", STRANGER, **admin)[0] == 204
    assert ask(site, "DELETE", "/admin/blacklist/127.0.0.0/8")[0] == 204
    assert ask(site, "GET", "/topics")[0] == 200


def test_blacklist_counts_at_every_worker(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blacklist, "BLACKLIST_INTERVAL_SECONDS", 0.01)
    other = site.worker()

    def status() -> int:
        return other.get("/topics", environ_overrides={"REMOTE_ADDR": STRANGER}).status_code

    assert status() == 200
    ask(site, "POST", f"/admin/blacklist/{STRANGER}")
    wait_until(lambda: status() == 403)
    ask(site, "DELETE", f"/admin/blacklist/{STRANGER}")
    wait_until(lambda: status() == 200)


def test_client_behind_a_trusted_proxy_is_who_is_blacklisted(sites: Sites) -> None:
    site = sites(server_trusted_proxies="10.0.0.0/8")
    ask(site, "POST", f"/admin/blacklist/{STRANGER}")
    ask(site, "POST", "/admin/blacklist/6.6.6.6")
    told = f"6.6.6.6, {STRANGER}"
    assert ask(site, "GET", "/topics", "10.0.0.1", X_Forwarded_For=told)[0] == 403
    # Whoever is no proxy of ours may write there what they like.
    assert ask(site, "GET", "/topics", "198.51.100.1", X_Forwarded_For=told)[0] == 200
    told = f"{STRANGER}, 198.51.100.2"
    assert ask(site, "GET", "/topics", "10.0.0.1", X_Forwarded_For=told)[0] == 200


def test_transaction_ids_name_the_client_behind_the_proxy(sites: Sites) -> None:
    site = sites(server_trusted_proxies="10.0.0.1")
    for path in ("/topics", "/absent"):
        answer = site.client.get(
            path,
            headers={"X-Forwarded-For": STRANGER},
            environ_overrides={"REMOTE_ADDR": "10.0.0.1"},
        )
        assert f"::{STRANGER}::" in answer.headers["transactionId"]


ALL = [
    ("GET", "/admin/blacklist"),
    ("POST", "/admin/blacklist/10.0.0.1"),
    ("DELETE", "/admin/blacklist/10.0.0.1"),
    ("GET", "/admin/consumerCache"),
    ("POST", "/admin/dropConsumerCache"),
]


@pytest.mark.parametrize(("method", "path"), ALL)
def test_strangers_do_not_administer(sites: Sites, method: str, path: str) -> None:
    site = sites(server_trusted_proxies="127.0.0.1")
    for address, headers in (
        (STRANGER, {}),
        ("127.0.0.1", {"X_Forwarded_For": STRANGER}),
        ("::1", {"X_Forwarded_For": "127.0.0.1"}),
        ("127.0.0.1", {"Via": "1.1 proxy"}),
    ):
        status, body = ask(site, method, path, address, **headers)
        assert (status, body["mrstatus"]) == (403, 4002)
    assert ask(site, method, path)[0] in {200, 204, 404}


@pytest.mark.parametrize("rights", [None, "ann * publish subscribe\nbob t manage\nops * manage\n"])
def test_users_administer_if_they_may_manage_everything(
    sites: Sites, tmp_path: Path, rights: str | None
) -> None:
    (tmp_path / "users").write_text(
        "".join(f"{name}:{HASHES['argon2']}\n" for name in ("ann", "bob", "ops"))
    )
    settings = {"auth_users": str(tmp_path / "users"), "auth_admin_secret": "very secret"}
    if rights is not None:
        (tmp_path / "rights").write_text(rights)
        settings["auth_permissions"] = str(tmp_path / "rights")
    site = sites(**settings)
    path = "/admin/blacklist"
    # Not even from this machine, without a name.
    assert ask(site, "GET", path)[0] == 401
    for name in ("ann", "bob"):
        assert ask(site, "GET", path, Authorization=header(name, "secret"))[0] == 403
    assert ask(site, "GET", path, Authorization=header("ops", "secret"))[0] == (
        200 if rights else 403
    )
    assert ask(site, "GET", path, STRANGER, **signature("admin", "very secret"))[0] == 200


@pytest.mark.slow
def test_groups_that_poll_now_are_shown(site: Site) -> None:
    site.post("/events/t", "x")
    site.post("/events/u", "x")
    site.poll("/events/u/idle/c")
    site.poll("/events/t/g/c")
    ended = threading.Event()

    def poll() -> None:
        site.app.test_client().get("/events/t/g/c?timeout=20000", buffered=True)
        ended.set()

    waiting = threading.Thread(target=poll, daemon=True)
    waiting.start()
    shown = {"consumers": [{"name": "t::g", "consumers": 1}], "complete": True}
    wait_until(lambda: ask(site, "GET", "/admin/consumerCache") == (200, shown))
    assert ask(site, "POST", "/admin/dropConsumerCache") == (200, None)
    site.post("/events/t", "y")
    assert ended.wait(20)
    waiting.join(20)
    shown = {"consumers": [], "complete": True}
    wait_until(lambda: ask(site, "GET", "/admin/consumerCache") == (200, shown))


def test_groups_of_so_many_topics_only_are_shown(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dmaap_admin, "MAX_TOPICS", 1)
    site.post("/events/t", "x")
    site.post("/events/u", "x")
    shown = {"consumers": [], "complete": False}
    assert ask(site, "GET", "/admin/consumerCache") == (200, shown)
