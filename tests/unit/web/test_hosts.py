"""Requests of anonymous clients to a host that is not the router's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from router.errors import ForbiddenError
from router.settings import load
from router.web.origins import Hosts, warning
from router.web.server import options
from tests.unit.web.applications import HASHES, Site, header

Sites = Callable[..., Site]
EVIL = {"Host": "evil.example:3904"}
TOPIC = "/persistent/public/default/t"
OUTSIDE = {"server_host": "0.0.0.0", "auth_insecure": "true"}
PROXIED = {"server_trusted_proxies": "127.0.0.1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/events/t"),
        ("POST", "/events/transaction/t"),
        ("GET", "/events/t/g/c?timeout=0"),
        ("GET", "/events/t/stream"),
        ("GET", "/topics"),
        ("POST", "/topics/create"),
        ("DELETE", "/topics/t"),
        ("POST", "/apiKeys/create"),
        ("GET", "/apiKeys"),
        ("GET", "/admin/blacklist"),
        ("GET", "/metrics"),
        ("POST", "/topics/t/groups/g/reset"),
        ("POST", f"/topics{TOPIC}/partitions/0/messages"),
        ("PUT", f"/admin/v2{TOPIC}"),
        ("DELETE", f"/admin/v2{TOPIC}"),
        ("GET", "/admin/v2/tenants"),
        ("OPTIONS", "/events/t"),
        ("GET", "/nowhere"),
    ],
)
def test_every_request_to_another_host_is_refused(site: Site, method: str, path: str) -> None:
    answer = site.client.open(path, method=method, headers=EVIL)
    assert answer.status_code == 403
    assert b"server.hosts" in answer.data
    assert b"evil.example" in answer.data
    assert site.backend.published == []


@pytest.mark.parametrize("path", ["/health", "/ready", "/ready/"])
def test_health_checks_may_be_sent_to_any_host(site: Site, path: str) -> None:
    assert site.client.get(path, headers=EVIL).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:3904", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:3904", ""],
)
def test_names_and_addresses_of_loopback_are_served(site: Site, host: str) -> None:
    answer = site.client.get("/topics", environ_overrides={"HTTP_HOST": host})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "host",
    ["localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0", "10.0.0.1", "[::2]", "a", "["],
)
def test_hosts_that_only_look_like_loopback_are_refused(site: Site, host: str) -> None:
    answer = site.client.get("/topics", environ_overrides={"HTTP_HOST": host})
    assert answer.status_code == 403


@pytest.mark.slow
@pytest.mark.parametrize("host", ["router.example", "ROUTER.example:8080", "10.1.2.3", "localhost"])
@pytest.mark.parametrize("more", [{}, OUTSIDE, PROXIED])
def test_hosts_that_are_named_are_served_and_no_others(
    sites: Sites, host: str, more: Mapping[str, str]
) -> None:
    site = sites(server_hosts="router.example, 10.1.2.3", **more)
    assert site.client.get("/topics", headers={"Host": host}).status_code == 200
    assert site.client.get("/topics", headers=EVIL).status_code == 403


@pytest.mark.parametrize("more", [OUTSIDE, PROXIED])
def test_any_host_is_served_outside_loopback_while_none_is_named(
    sites: Sites, more: Mapping[str, str]
) -> None:
    assert sites(**more).client.get("/topics", headers=EVIL).status_code == 200


@pytest.mark.slow
def test_any_host_is_served_to_users(sites: Sites, tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"anna:{HASHES['argon2']}\n")
    site = sites(auth_users=str(tmp_path / "users"), server_hosts="router.example")
    sent = EVIL | {"Authorization": header("anna", "secret")}
    assert site.client.get("/topics", headers=sent).status_code == 200


def test_refusal_has_no_more_of_a_host_than_a_line() -> None:
    with pytest.raises(ForbiddenError) as refusal:
        Hosts(()).check({"HTTP_HOST": "x" * 5_000, "PATH_INFO": "/topics"})
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("given", "warns"),
    [
        ({}, False),
        (OUTSIDE, True),
        (PROXIED, True),
        (OUTSIDE | {"server_hosts": "a"}, False),
        (PROXIED | {"server_hosts": "a"}, False),
        (OUTSIDE | {"auth_users": "users"}, False),
    ],
)
def test_start_warns_where_any_host_is_served(given: Mapping[str, str], warns: bool) -> None:
    settings = load(None, {f"ROUTER_{name.upper()}": text for name, text in given.items()})
    assert (warning(settings) is not None) is warns
    logged: list[str] = []

    class Log:
        def warning(self, form: str, sentence: str) -> None:
            logged.append(form % sentence)

    class Arbiter:
        log = Log()
        systemd = False

        class cfg:  # noqa: N801 - as gunicorn's arbiter has it
            address = (("127.0.0.1", 3904),)

    options(settings)["on_starting"](Arbiter)
    assert [("server.hosts" in line) for line in logged] == [True] * warns
