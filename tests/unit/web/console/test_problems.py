"""Failures at paths of the console, of `/docs` and of `/openapi.json`: problem documents."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest
from markupsafe import escape
from werkzeug.test import TestResponse

from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    RouterError,
    TooManyRequestsError,
)
from router.errors.catalogue import ADVICE
from router.services.manage import TopicManagement
from tests.unit.web.applications import BOTH, HASHES, Site

Sites = Callable[..., Site]
PATHS: Final = [
    "/",
    "/console",
    "/console/topics",
    "/console/static/0/console.css",
    "/docs",
    "/docs/static/0/docs.js",
    "/favicon.ico",
    "/openapi.json",
    "/openapi.json/",
]
BROWSER: Final = {"Accept": "text/html,*/*;q=0.8"}


def problem(answer: TestResponse, status: int) -> dict[str, Any]:
    """Return a problem document; fail if the answer is none of this status."""
    assert (answer.status_code, answer.mimetype) == (status, "application/problem+json")
    found: dict[str, Any] = answer.get_json()
    assert found.keys() == {"type", "title", "status", "detail", "code", "hint"}
    assert (found["type"], found["title"]) == ("about:blank", HTTPStatus(status).phrase)
    assert found["status"] == status
    assert found["hint"] == ADVICE[found["code"]].remedy
    assert found["detail"]
    assert answer.headers["transactionId"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_foreign_host_is_a_problem(site: Site, path: str) -> None:
    answer = site.client.get(path, headers={"Host": "evil.example"})
    assert problem(answer, 403)["code"] == "forbidden"


@pytest.mark.parametrize("path", PATHS)
def test_foreign_origin_is_a_problem(site: Site, path: str) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        problem(site.client.get(path, headers=headers), 403)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_blacklisted_address_is_a_problem(site: Site, path: str) -> None:
    assert site.client.post("/admin/blacklist/192.0.2.9").status_code == 204
    other = site.client.get(path, environ_base={"REMOTE_ADDR": "192.0.2.9"})
    assert problem(other, 403)["code"] == "blacklisted"


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_wrong_method_is_a_problem_that_names_the_right_ones(site: Site, path: str) -> None:
    for method in ("PUT", "PATCH", "TRACE", "X-ANY"):
        answer = site.client.open(path, method=method)
        assert problem(answer, 405)["code"] == "method-not-allowed"
        assert "GET" in answer.headers["Allow"]


@pytest.mark.parametrize("path", ["/console/a/b", "/docs/x", "/docs/static/0/none.js"])
def test_unknown_path_is_a_problem(site: Site, path: str) -> None:
    assert problem(site.client.get(path), 404)["code"] == "path-not-found"


def test_failure_of_another_dialect_keeps_its_form(site: Site) -> None:
    for path in ("/nowhere", "/consoles", "/docsx", "/openapi.jsonx", "/events/t/g"):
        answer = site.client.get(path)
        assert answer.status_code == 404
        assert answer.get_json().keys() == BOTH


def test_body_that_is_too_large_or_no_form_is_a_problem(site: Site) -> None:
    form = "application/x-www-form-urlencoded"
    large = "name=" + "x" * (2 * 1024 * 1024)
    answer = site.client.post("/console/topics", data=large, content_type=form)
    assert problem(answer, 413)["code"] == "batch-too-large"
    answer = site.client.post("/console/topics", data="{}", content_type="application/json")
    assert problem(answer, 415)["code"] == "unsupported-encoding"
    assert problem(site.client.post("/console/topics", data="x", content_type=form), 400)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TooManyRequestsError("too many", retry_after=2), 429),
        (BackendUnavailableError("gone"), 503),
        (BackendTimeoutError("late"), 504),
        (RouterError("broken"), 500),
        (ValueError("of ours: secret"), 500),
    ],
)
def test_failure_of_a_view_is_a_problem(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(TopicManagement, "listed", fail)
    answer = site.client.get("/console/topics")
    found = problem(answer, status)
    assert "secret" not in answer.text
    assert ("Retry-After" in answer.headers) == (status in {429, 503})
    assert escape(found["hint"]) in site.client.get("/console/topics", headers=BROWSER).text


@pytest.mark.slow
def test_missing_credentials_are_a_problem(sites: Sites, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"anna:{HASHES['bcrypt']}\n")
    site = sites(auth_users=str(users))
    answer = site.client.get("/console/topics")
    assert problem(answer, 401)["code"] == "unauthenticated"
    assert answer.headers["WWW-Authenticate"].startswith("Basic")
    # What is said of the router's routes is for everybody, as `/` is.
    for path in ("/", "/docs", "/openapi.json"):
        assert site.client.get(path).status_code == 200


def test_browser_is_shown_a_page_unless_it_asks_for_json(site: Site) -> None:
    for path in ("/console/nowhere", "/docs/x", "/console/topics?page=x"):
        page = site.client.get(path, headers=BROWSER)
        assert page.mimetype == "text/html"
        mark = "&" if "?" in path else "?"
        asked = site.client.get(f"{path}{mark}format=json", headers=BROWSER)
        assert asked.mimetype == "application/problem+json"
        plain = site.client.get(f"{path}{mark}format=html")
        assert plain.mimetype == "text/html"


def test_format_that_cannot_be_read_is_refused_before_anything_is_done(site: Site) -> None:
    site.post("/events/t", "a")
    form = {"data": {"message": "b"}, "headers": {"Accept": "application/json"}}
    answer = site.client.post("/console/topics/t/publish?format=maybe", **form)
    assert problem(answer, 400)["code"] == "bad-read-option"
    assert site.poll("/events/t/g/c").get_json() == ["a"]
