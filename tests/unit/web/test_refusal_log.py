"""Failed logins and refusals are logged with address, reason and the id of the answer."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from router import log
from tests.unit.web.applications import HASHES, Site, header


@pytest.fixture
def site(tmp_path: Path) -> Site:
    users, permissions = tmp_path / "users", tmp_path / "permissions"
    users.write_text(f"anna:{HASHES['argon2']}\n")
    users.chmod(0o600)
    permissions.write_text("anna orders publish\n")
    return Site({"auth_users": str(users), "auth_permissions": str(permissions)})


def refused(
    site: Site, path: str, authorization: str | None, address: str = "192.0.2.7"
) -> tuple[Any, list[MutableMapping[str, Any]]]:
    """Publish, and return the answer and the log lines about it."""
    headers = {} if authorization is None else {"Authorization": authorization}
    with structlog.testing.capture_logs(
        [structlog.contextvars.merge_contextvars, log._add_origin]
    ) as lines:
        answer = site.client.post(
            path, data="a", headers=headers, environ_base={"REMOTE_ADDR": address}
        )
    return answer, [line for line in lines if line["event"].endswith("-refused")]


def test_failed_login_is_logged_with_address_and_reason(site: Site) -> None:
    answer, (line,) = refused(site, "/events/orders", header("anna", "hunter2"))
    assert answer.status_code == 401
    assert line["event"] == "login-refused"
    assert line["log_level"] == "warning"
    assert (line["address"], line["user"]) == ("192.0.2.7", "anna")
    assert line["reason"] == "The name or the password is wrong."
    assert line["request_id"] == answer.headers["transactionId"] == answer.json["transactionid"]
    assert "hunter2" not in str(line)


@pytest.mark.parametrize("path", ["/events/secret", "/topics/persistent/public/default/secret"])
def test_refusal_of_a_known_user_is_logged_in_each_dialect(site: Site, path: str) -> None:
    answer, (line,) = refused(site, path, header("anna", "secret"))
    assert answer.status_code == 403
    assert (line["event"], line["log_level"]) == ("request-refused", "warning")
    assert (line["user"], line["address"], line["code"]) == ("anna", "192.0.2.7", "forbidden")
    assert line["request_id"] == answer.headers["transactionId"]


def test_request_without_credentials_is_no_failed_login(site: Site) -> None:
    answer, (line,) = refused(site, "/events/orders", None)
    assert answer.status_code == 401
    assert (line["event"], line["log_level"]) == ("request-refused", "info")


def test_refused_page_of_a_foreign_origin_is_logged(site: Site) -> None:
    with structlog.testing.capture_logs() as lines:
        site.client.post("/events/orders", data="a", headers={"Origin": "https://foreign.example"})
    assert [line["code"] for line in lines if line["event"] == "request-refused"] == ["forbidden"]


def test_bad_request_is_not_logged(site: Site) -> None:
    answer, lines = refused(site, "/events/..", header("anna", "secret"))
    assert answer.status_code == 400
    assert not lines


def test_refusals_beyond_the_bound_are_counted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_REFUSAL_LINES_PER_SECOND", 0)
    assert not refused(site, "/events/orders", None)[1]
    monkeypatch.undo()
    answer, (line,) = refused(site, "/events/orders", None)
    assert answer.status_code == 401
    assert line["left_out"] == 1
