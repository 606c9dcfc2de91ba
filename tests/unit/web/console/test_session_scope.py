"""Where a session counts: below `/console/`, and for requests of the console's own pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.unit.web import routes
from tests.unit.web.applications import Site, header
from tests.unit.web.console.signing import BROWSER, PASSWORD, Browser, users_file

OTHER_ORIGINS: Final = (
    {"Origin": "http://localhost:8080"},
    {"Origin": "http://pages.localhost"},
    {"Origin": "https://pages.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://localhost", "Sec-Fetch-Site": "same-site"},
)
PUBLIC: Final = ("/console/static/", "/console/signin", "/console/signout")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Any origin may use the API: the console's sessions are not for them."""
    users = users_file(tmp_path_factory.mktemp("users"))
    site = Site({"auth_users": str(users), "cors_origins": "*"})
    site.post("/events/t", "a", headers={"Authorization": header("anna", PASSWORD)})
    yield site
    site.close()


@pytest.fixture(scope="module")
def browser(site: Site) -> Browser:
    found = Browser(site)
    assert found.sign_in().status_code == 303
    assert found.knows("anna")
    return found


def is_console(path: str) -> bool:
    return path == "/console" or path.startswith("/console/")


@pytest.mark.slow
def test_cookie_changes_no_answer_outside_the_console(site: Site, browser: Browser) -> None:
    token = {"X-CSRF-Token": browser.token()}
    asked = 0
    for method, path in routes.requests(site.app):
        if is_console(path):
            continue
        with_cookie = browser.open(path, method, headers=token)
        without = site.client.open(path, method=method, headers=BROWSER)
        assert with_cookie.status_code == without.status_code, (method, path)
        asked += with_cookie.status_code == 401
    assert asked > 100


@pytest.mark.parametrize("headers", OTHER_ORIGINS, ids=str)
def test_pages_of_other_origins_do_nothing_with_a_session(
    site: Site, browser: Browser, headers: dict[str, str]
) -> None:
    token, asked = browser.token(), 0
    for method, path in routes.requests(site.app):
        if not is_console(path) or path.startswith(PUBLIC):
            continue
        answer = browser.open(path, method, headers=headers | {"X-CSRF-Token": token})
        assert answer.status_code in {403, 404}, (method, path)
        asked += answer.status_code == 403
    assert asked > 15


@pytest.mark.parametrize("headers", OTHER_ORIGINS, ids=str)
def test_pages_of_other_origins_sign_nobody_in_or_out(
    site: Site, browser: Browser, headers: dict[str, str]
) -> None:
    answer = Browser(site).sign_in("bert", headers=headers)
    assert answer.status_code == 403
    assert "Set-Cookie" not in answer.headers
    form = {"csrf_token": browser.token()}
    answer = browser.open("/console/signout", "POST", data=form, headers=headers)
    assert answer.status_code == 403
    assert "Set-Cookie" not in answer.headers


def test_changes_of_own_pages_are_served(browser: Browser, tmp_path: Path) -> None:
    own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    form = {"csrf_token": browser.token(), "name": tmp_path.name}
    answer = browser.open("/console/topics", "POST", data=form, headers=own)
    assert answer.status_code == 303


def test_every_change_needs_the_token(site: Site, browser: Browser) -> None:
    for method, path in routes.requests(site.app):
        if not is_console(path) or method in {"GET", "HEAD"} or path == "/console/signin":
            continue
        answer = browser.open(path, method, data={"csrf_token": "wrong"})
        assert answer.status_code == 403, (method, path)
        assert "token" in answer.text
