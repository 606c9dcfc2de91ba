"""Who may use Pulsar's administration, and where it is not served."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from flask.testing import FlaskClient

from router.app import create_app
from router.cli.administered import check
from router.errors import SettingError, by_code
from router.settings import load
from router.web.dmaap.errors import TABLE
from router.web.pulsar_admin.views import STATUS, status_of
from tests.unit.web import unreadable
from tests.unit.web.applications import HASHES, header
from tests.unit.web.pulsar_admin.conftest import Site

BASE = "/admin/v2"
AFAR = {"REMOTE_ADDR": "192.0.2.1"}


@pytest.fixture
def guarded(sites: Site, tmp_path: Path) -> FlaskClient:
    users, permissions = tmp_path / "users", tmp_path / "permissions"
    users.write_text("".join(f"{name}:{HASHES['argon2']}\n" for name in ("ops", "anna", "eve")))
    permissions.write_text("ops * manage subscribe\nanna orders.* subscribe\neve other subscribe\n")
    given = {"auth__users": str(users), "auth__permissions": str(permissions)}
    return sites(acl__enforce="false", **given)


def status(client: FlaskClient, who: str | None, method: str, path: str, **more: Any) -> int:
    headers = {"Authorization": header(who, "secret")} if who else {}
    return client.open(f"{BASE}/{path}", method=method, headers=headers, **more).status_code


@pytest.mark.slow
def test_tenants_are_for_administrators(guarded: FlaskClient) -> None:
    asked = {who: status(guarded, who, "GET", "tenants") for who in (None, "anna", "ops")}
    assert asked == {None: 401, "anna": 403, "ops": 200}


def test_policies_are_for_administrators(guarded: FlaskClient) -> None:
    for method, path in (
        ("GET", "namespaces/public"),
        ("GET", "namespaces/public/default"),
        ("PUT", "namespaces/public/more"),
        ("DELETE", "namespaces/public/default"),
        ("POST", "namespaces/public/default/retention"),
        ("DELETE", "namespaces/public/default/retention"),
    ):
        assert status(guarded, "anna", method, path) == 403


def test_topics_are_for_those_with_rights_on_them(guarded: FlaskClient) -> None:
    name = f"orders.{uuid4().hex}"
    path = f"persistent/public/default/{name}"
    assert status(guarded, "anna", "PUT", path) == 403
    assert status(guarded, "ops", "PUT", path) == 204
    seen = {who: status(guarded, who, "GET", f"{path}/stats") for who in ("anna", "eve", "ops")}
    assert seen == {"anna": 200, "eve": 403, "ops": 200}
    changed = [("PUT", "/subscription/s"), ("DELETE", ""), ("POST", "/terminate")]
    assert {status(guarded, "anna", method, path + below) for method, below in changed} == {403}
    peeked = {who: status(guarded, who, "GET", f"{path}/examinemessage") for who in ("anna", "eve")}
    # There is no message; who may not read it is not told so.
    assert peeked == {"anna": 404, "eve": 403}
    lists = {
        who: f"persistent://public/default/{name}"
        in guarded.get(
            f"{BASE}/persistent/public/default", headers={"Authorization": header(who, "secret")}
        ).get_data(as_text=True)
        for who in ("anna", "eve")
    }
    assert lists == {"anna": True, "eve": False}
    assert status(guarded, "ops", "DELETE", path) == 204


def test_health_is_for_everybody(guarded: FlaskClient) -> None:
    assert status(guarded, None, "GET", "brokers/health") == 200
    assert status(guarded, None, "GET", "clusters") == 401


def test_strangers_administer_nothing(site: FlaskClient) -> None:
    assert status(site, None, "GET", "tenants") == 200
    assert status(site, None, "GET", "tenants", environ_base=AFAR) == 403
    assert status(site, None, "PUT", "namespaces/public/x", environ_base=AFAR) == 403
    named = site.get(f"{BASE}/tenants", headers={"Host": "evil.example"})
    assert named.status_code == 403


def test_blacklisted_address_looks_up_nothing(sites: Site) -> None:
    client = sites(only_admin=False)
    path = "/lookup/v2/topic/persistent/public/default/t"
    client.post("/admin/blacklist/192.0.2.1")
    answers = {
        at: client.get(path, environ_base={"REMOTE_ADDR": at}) for at in ("192.0.2.1", "::1")
    }
    client.delete("/admin/blacklist/192.0.2.1")
    assert {at: answer.status_code for at, answer in answers.items()} == {
        "192.0.2.1": 403,
        "::1": 200,
    }
    assert "blacklisted" in answers["192.0.2.1"].get_data(as_text=True)


def test_other_stores_have_their_own_administration() -> None:
    app = create_app(load(None, {}, {"backend.url": "memory"}))
    client = app.test_client()
    for path in (f"{BASE}/tenants", "/lookup/v2/topic/persistent/public/default/t"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert "Apache Pulsar" in answer.get_data(as_text=True)
    app.extensions["router.close"]()


@pytest.mark.parametrize("only_admin", [True, False])
def test_administration_alone_serves_nothing_else(sites: Site, only_admin: bool) -> None:
    client = sites(only_admin=only_admin)
    assert (client.get("/topics").status_code == 404) is only_admin
    assert client.get(f"{BASE}/clusters").json == ["standalone"]
    assert client.get(f"{BASE}/nothing/like/it").status_code == 405


def test_every_failure_has_a_status() -> None:
    assert {status_of(error()) // 100 for code, error in by_code().items() if code in STATUS} == {4}
    assert {code for code in by_code() if code not in TABLE} == set()


def looked_up(sites: Site, host: str, **settings: str) -> tuple[int, dict[str, str]]:
    path = "/lookup/v2/topic/persistent/public/default/t"
    answer = sites(server__hosts="router.example", **settings).get(path, headers={"Host": host})
    return answer.status_code, orjson.loads(answer.data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"broker__pulsar": "127.0.0.1:6650"}, ("pulsar://127.0.0.1:6650", None)),
        ({"broker__pulsar": "0.0.0.0:6650"}, ("pulsar://router.example:6650", None)),
        ({"broker__pulsar": "[::]:6650"}, ("pulsar://router.example:6650", None)),
        ({"broker__pulsar": "", "broker__pulsar_tls": "h:1"}, (None, "pulsar+ssl://h:1")),
        (
            {"broker__advertised": "pulsar://a:1, pulsar+ssl://a:2"},
            ("pulsar://a:1", "pulsar+ssl://a:2"),
        ),
    ],
    ids=str,
)
def test_lookup_tells_where_clients_find_the_broker(
    sites: Site, settings: dict[str, str], told: tuple[str | None, str | None]
) -> None:
    status, found = looked_up(sites, "router.example:8080", **settings)
    assert status == 200
    assert (found.get("brokerUrl"), found.get("brokerUrlTls")) == told
    assert found["httpUrl"] == "http://router.example:8080"
    assert found["brokerUrlSsl"] == (told[1] or "")


@pytest.mark.parametrize("listener", ["", "127.0.0.1:0"])
def test_lookup_says_what_is_missing(sites: Site, listener: str) -> None:
    status, found = looked_up(sites, "localhost", broker__pulsar=listener)
    assert status == 412
    assert "broker.pulsar" in found["reason"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"broker.http": "0.0.0.0:8080"}, "loopback"),
        ({"broker.http": "8080"}, "HOST:PORT"),
        ({"broker.http": "127.0.0.1:8080", "backend.url": "kafka://k:9092"}, "nothing"),
    ],
    ids=str,
)
def test_http_of_the_broker_is_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        check(load(None, {}, settings))


def test_http_of_the_broker_is_served_anywhere_where_asked_for() -> None:
    insecure = {"broker.http": "0.0.0.0:8080", "auth.insecure": "true"}
    assert check(load(None, {}, insecure)).port == 8080


def test_parameter_that_cannot_be_read_is_400(site: FlaskClient) -> None:
    site.put("/admin/v2/persistent/public/default/t")
    found = unreadable.cases(unreadable.tables(site.application, {"pulsar_admin"}))
    assert len(found) > 10
    for method, name, urls in found:
        for url in urls:
            answer = site.open(url, method=method)
            assert answer.status_code == 400, url
            assert f"{name}: expected" in answer.get_json()["reason"]
