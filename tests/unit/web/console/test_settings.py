"""The page of the settings in force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.settings import BY_NAME
from tests.unit.web.applications import Site, header
from tests.unit.web.console.signing import BROWSER, JSON, PASSWORD, users_file

Sites = Callable[..., Site]


def rows(site: Site, query: str = "") -> dict[str, Any]:
    found = site.client.get(f"/console/settings{query}", headers=JSON).get_json()["settings"]
    return {row["name"]: row for row in found}


def test_every_setting_has_value_origin_default_and_meaning(sites: Sites) -> None:
    found = rows(sites(log_level="debug"))
    assert list(found) == list(BY_NAME)
    assert found["log.level"] == {
        "name": "log.level",
        "value": "debug",
        "origin": "variable ROUTER_LOG_LEVEL",
        "default": "info",
        "meaning": "Lowest level of the log lines that are written.",
    }
    assert found["server.port"]["origin"] == "default"


def test_search_finds_names_values_and_meanings(sites: Sites) -> None:
    site = sites(log_level="debug")
    assert list(rows(site, "?q=SERVER.HOSTS")) == ["server.hosts"]
    assert list(rows(site, "?q=http+server+listens")) == ["server.host", "server.port"]
    assert list(rows(site, "?changed=true")) == ["backend.url", "log.level"]
    assert list(rows(site, "?changed=true&q=debug")) == ["log.level"]
    assert (
        "No setting is found." in site.client.get("/console/settings?q=zzz", headers=BROWSER).text
    )


def test_secrets_are_masked_and_not_found_by_a_search(sites: Sites) -> None:
    secret = "hunter2"
    site = sites(kafka_password=secret, auth_admin_secret=secret, zookeeper_digest=secret)
    for query in ("", f"?q={secret[:3]}"):
        answer = site.client.get(f"/console/settings{query}", headers=JSON)
        assert f'"{secret}"' not in answer.text
    assert rows(site, "?q=hunter") == {}
    assert rows(site)["kafka.password"]["value"] == "***"
    assert rows(site)["pulsar.token"]["value"] == ""


def test_bytes_that_are_no_characters_are_shown_all_the_same(sites: Sites) -> None:
    site = sites(server_help_url="http://help/\udcff<b>")
    assert rows(site)["server.help_url"]["value"] == "http://help/?<b>"
    assert "http://help/?&lt;b&gt;" in site.client.get("/console/settings", headers=BROWSER).text


@pytest.mark.parametrize(("user", "status"), [("ops", 200), ("anna", 403)])
def test_settings_are_for_administrators(
    sites: Sites, tmp_path: Path, user: str, status: int
) -> None:
    (tmp_path / "permissions").write_text("ops * manage\nanna * publish")
    users = users_file(tmp_path, anna=PASSWORD, ops=PASSWORD)
    site = sites(auth_users=str(users), auth_permissions=str(tmp_path / "permissions"))
    known = {"Authorization": header(user, PASSWORD)}
    answer = site.client.get("/console/settings", headers=JSON | known)
    assert answer.status_code == status
    assert ("settings" in answer.get_json()) == (status == 200)


def test_settings_of_a_router_without_users_are_for_its_own_machine(site: Site) -> None:
    answer = site.client.get(
        "/console/settings", headers=JSON, environ_overrides={"REMOTE_ADDR": "192.0.2.1"}
    )
    assert (answer.status_code, answer.get_json()["code"]) == (403, "forbidden")
