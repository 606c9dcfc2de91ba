"""Where browsers begin, and what all pages have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from router.web.console.pages import AGAIN, FOREVER
from tests.unit.web.applications import HASHES, Site, header

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PAGES = [
    "/console/",
    "/console/topics",
    "/console/groups",
    "/console/about",
    "/console/pipelines",
    "/console/access",
    "/console/access/topics",
    "/console/access/keys",
    "/console/signin",
    "/console/settings",
]


def test_root_sends_a_browser_to_the_console(site: Site) -> None:
    answer = site.client.get("/", headers=BROWSER)
    assert (answer.status_code, answer.headers["Location"]) == (302, "/console/")
    assert answer.headers["Vary"] == "Accept"


@pytest.mark.slow
@pytest.mark.parametrize("accept", ["*/*", "application/json", None])
def test_root_tells_others_what_runs_here(site: Site, accept: str | None) -> None:
    headers = {} if accept is None else {"Accept": accept}
    found = site.client.get("/", headers=headers).get_json()
    assert found["name"] == "dragoman"
    assert found["console"] == "http://localhost/console/"


def test_root_names_addresses_as_a_proxy_has_them(sites: Callable[..., Site]) -> None:
    site = sites(server_trusted_proxies="127.0.0.1")
    proxied = {"X-Forwarded-Prefix": "/mr", "X-Forwarded-Host": "bus.example"}
    found = site.client.get("/", headers=proxied).get_json()
    assert found["console"] == "http://bus.example/mr/console/"
    page = site.client.get("/console/", headers=BROWSER | proxied).text
    assert 'href="/mr/console/groups"' in page
    assert 'href="/console' not in page


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES)
def test_page_allows_its_own_scripts_only_and_is_kept_nowhere(site: Site, path: str) -> None:
    answer = site.client.get(path, headers=BROWSER)
    assert (answer.status_code, answer.mimetype) == (200, "text/html")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["Cache-Control"] == "no-store"
    # With no-referrer a browser's forms would have the origin null, and be refused.
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|\sstyle=", answer.text)
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", answer.text)


@pytest.mark.parametrize("path", PAGES)
def test_page_has_the_navigation_and_a_twin_in_json(site: Site, path: str) -> None:
    page = site.client.get(path, headers=BROWSER).text
    for name in ("Topics", "Groups", "Pipelines", "Access", "Settings"):
        assert re.search(rf"<a href=\"/console/\w+\"[^>]*>{name}</a>", page)
    twin = site.client.get(path + "?format=json", headers=BROWSER)
    assert (twin.status_code, twin.mimetype) == (200, "application/json")


def test_static_files_are_kept_as_long_as_they_are_the_same(site: Site) -> None:
    page = site.client.get("/console/", headers=BROWSER).text
    [style] = re.findall(r'href="(/console/static/\w+/console.css)"', page)
    answer = site.client.get(style)
    assert (answer.mimetype, answer.headers["Cache-Control"]) == ("text/css", FOREVER)
    other = site.client.get("/console/static/0123/console.css")
    assert (other.data, other.headers["Cache-Control"]) == (answer.data, AGAIN)


@pytest.mark.parametrize("name", ["none.js", "..", "%2e%2e%2fpages.py", "pages.py"])
def test_static_file_that_is_none_is_404(site: Site, name: str) -> None:
    assert site.client.get(f"/console/static/0123/{name}").status_code == 404


def test_favicon_is_an_image(site: Site) -> None:
    answer = site.client.get("/favicon.ico")
    assert (answer.status_code, answer.mimetype) == (200, "image/svg+xml")


@pytest.mark.parametrize("theme", ["system", "light", "dark"])
def test_theme_is_kept_in_the_browser_and_in_the_page(site: Site, theme: str) -> None:
    came = {"Referer": "http://localhost/console/groups?q=a"}
    answer = site.client.post("/console/theme", data={"theme": theme}, headers=BROWSER | came)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/groups?q=a")
    for path in ("/console/topics", "/docs"):
        page = site.client.get(path, headers=BROWSER).text
        assert f'<html lang="en" data-theme="{theme}">' in page
    assert site.client.post("/console/theme", data={"theme": "<b>"}).status_code == 400


@pytest.mark.parametrize("came", ["", "https://elsewhere.example/x", "http://localhost/docs"])
def test_theme_leads_to_a_page_of_the_console_alone(site: Site, came: str) -> None:
    headers = BROWSER | ({"Referer": came} if came else {})
    answer = site.client.post("/console/theme", data={"theme": "dark"}, headers=headers)
    assert answer.headers["Location"] == "/console/"


def test_theme_that_is_none_is_the_system_s(site: Site) -> None:
    site.client.set_cookie("router-theme", '"><script>')
    page = site.client.get("/console/topics", headers=BROWSER).text
    assert '<html lang="en" data-theme="system">' in page


def test_unknown_page_is_a_page_and_a_problem_document_with_a_hint(site: Site) -> None:
    page = site.client.get("/console/<b>nowhere", headers=BROWSER)
    assert (page.status_code, page.mimetype) == (404, "text/html")
    assert "<b>" not in page.text
    problem = site.client.get("/console/nowhere?format=json")
    assert (problem.status_code, problem.mimetype) == (404, "application/problem+json")
    found = problem.get_json()
    assert (found["status"], found["code"]) == (404, "path-not-found")
    assert found["hint"]


def test_pages_ask_for_credentials_where_the_router_has_users(
    sites: Callable[..., Site], tmp_path: Path
) -> None:
    users = tmp_path / "users"
    users.write_text(f"anna:{HASHES['bcrypt']}\n")
    site = sites(auth_users=str(users))
    for path in set(PAGES) - {"/console/signin"}:
        assert site.client.get(path, headers=BROWSER).status_code == 303
        refused = site.client.get(path, headers={"Accept": "application/json"})
        assert refused.status_code == 401
        assert refused.headers["WWW-Authenticate"].startswith("Basic")
        known = {"Authorization": header("anna", "secret")}
        # These are for administrators, which this file of users names none of.
        expected = 403 if path in {"/console/settings", "/console/pipelines"} else 200
        assert site.client.get(path, headers=BROWSER | known).status_code == expected
    assert site.client.get("/", headers=BROWSER).status_code == 302


def test_about_says_that_the_store_does_not_answer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.client.get("/console/about?format=json").get_json()["health"]["status"] == "ready"
    site.backend.close()
    found = site.client.get("/console/about?format=json").get_json()["health"]
    assert found["status"] == "not ready"
    assert found["reason"]
