"""Signing in and out, and what ends a session."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import structlog.testing

from router.errors import BackendUnavailableError
from router.node.memory import MemoryRegistry
from router.web import offload
from router.web.console.signin import FIRST_PAGE, own_page
from tests.unit.web.applications import Site, header
from tests.unit.web.console.signing import BROWSER, JSON, PASSWORD, Browser, users_file

Sites = Callable[..., Site]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    users_file(tmp_path)
    return tmp_path


@pytest.fixture
def site(sites: Sites, folder: Path) -> Site:
    return sites(auth_users=str(folder / "users"))


@pytest.fixture
def browser(site: Site) -> Browser:
    found = Browser(site)
    assert found.sign_in().status_code == 303
    return found


def topics(site: Site) -> str:
    return site.client.get("/topics", headers={"Authorization": header("anna", PASSWORD)}).text


def test_browser_without_credentials_is_sent_to_the_form_and_back(site: Site) -> None:
    browser, page = Browser(site), "/console/topics/a%20b?tab=messages&filter=x%26y"
    refused = browser.open(page)
    assert refused.status_code == 303
    assert refused.headers["Cache-Control"] == "no-store"
    to = urlsplit(refused.headers["Location"])
    assert to.path == "/console/signin"
    [goal] = parse_qs(to.query)["next"]
    assert f'name="next" value="{goal.replace("&", "&amp;")}"' in browser.open(to.geturl()).text
    answer = browser.sign_in(next_page=goal)
    assert (answer.status_code, answer.headers["Location"]) == (303, page)
    assert browser.knows("anna")


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers", [JSON, {"Accept": "*/*"}, {}, BROWSER | {"Authorization": header("anna", "wrong")}]
)
def test_other_clients_are_asked_for_basic_credentials(site: Site, headers: dict[str, str]) -> None:
    answer = site.client.get("/console/topics", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Basic")


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"},
        {"X-CSRF-Token": ""},
        {"Accept": "text/event-stream"},
        {"Cookie": "router-session=old"},
    ],
)
def test_scripts_of_pages_open_no_dialog_for_basic_credentials(
    site: Site, headers: dict[str, str]
) -> None:
    client = site.app.test_client(use_cookies=False)
    answer = client.get("/console/topics?format=json", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Session")


def test_form_of_a_session_that_ended_leads_to_the_sign_in_page(site: Site) -> None:
    answer = Browser(site).open("/console/topics", "POST", data={"name": "orders"})
    assert answer.status_code == 303
    assert answer.headers["Location"].startswith("/console/signin")
    assert "orders" not in topics(site)


def test_cookie_is_for_the_console_alone_and_for_no_script(site: Site) -> None:
    answer = Browser(site).sign_in()
    parts = answer.headers["Set-Cookie"].split("; ")
    assert parts[0].startswith("router-session=")
    assert parts[1:] == ["Path=/console", "HttpOnly", "SameSite=Strict"]


def test_cookie_is_secure_under_tls_and_behind_a_proxy_that_says_so(
    sites: Sites, folder: Path
) -> None:
    site = sites(auth_users=str(folder / "users"), server_trusted_proxies="127.0.0.1")
    proxied = {"X-Forwarded-Proto": "https", "X-Forwarded-Prefix": "/mr"}
    for more, path in (
        ({"base_url": "https://bus.example"}, "/console"),
        ({"headers": proxied}, "/mr/console"),
    ):
        browser = Browser(site)
        answer = browser.sign_in(**more)
        name, *flags = answer.headers["Set-Cookie"].split("; ")
        assert name.startswith("__Secure-router-session=")
        assert flags == [f"Path={path}", "HttpOnly", "SameSite=Strict", "Secure"]
        assert "Signed in as" in browser.open("/console/topics", **more).text
        # Without TLS that name counts as little as the other one with it.
        assert browser.open("/console/topics").status_code == 303
        browser.cookie = browser.cookie.removeprefix("__Secure-")
        assert browser.open("/console/topics", **more).status_code == 303


def test_session_counts_at_every_worker(site: Site, browser: Browser) -> None:
    other = Browser(site, site.worker(use_cookies=False))
    other.cookie = browser.cookie
    assert other.knows("anna")


def test_signing_in_again_gives_another_session(site: Site, browser: Browser) -> None:
    before = browser.cookie
    assert browser.sign_in("bert").status_code == 303
    assert browser.cookie != before
    assert browser.knows("bert")


def test_wrong_password_is_said_on_the_page_with_no_session(site: Site) -> None:
    browser = Browser(site)
    for user, password in (
        ("anna", "wrong"),
        ("nobody", PASSWORD),
        ("anna:x", PASSWORD),
        ("", ""),
        ("anna\0", PASSWORD),
    ):
        answer = browser.sign_in(user, password)
        assert (answer.status_code, answer.mimetype) == (401, "text/html")
        assert 'role="alert"' in answer.text
        assert "Set-Cookie" not in answer.headers
        assert not answer.headers["WWW-Authenticate"].startswith("Basic")
    problem = site.client.post(
        "/console/signin", data={"user": "anna", "password": "wrong"}, headers=JSON
    )
    assert (problem.status_code, problem.mimetype) == (401, "application/problem+json")


def test_tries_are_bounded_as_those_of_basic_credentials(
    sites: Sites, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "pause", lambda _: None)
    site = sites(auth_users=str(folder / "users"), auth_attempts_per_minute="2")
    browser = Browser(site)
    basic = {"Authorization": header("anna", "guess")}
    assert browser.sign_in(password="wrong").status_code == 401
    assert site.client.get("/topics", headers=basic).status_code == 401
    answer = browser.sign_in()
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "30")
    assert "Try again in 30 seconds." in answer.text
    assert "Set-Cookie" not in answer.headers


def test_sign_out_removes_the_cookie(site: Site, browser: Browser) -> None:
    page = browser.open("/console/topics").text
    assert "Sign out" in page
    refused = browser.open("/console/signout", "POST", data={})
    assert refused.status_code == 403
    answer = browser.open("/console/signout", "POST", data={"csrf_token": browser.token()})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/console/signin")
    name, *flags = answer.headers["Set-Cookie"].split("; ")
    assert name == "router-session="
    assert flags == ["Path=/console", "HttpOnly", "SameSite=Strict", "Max-Age=0"]


def test_sign_out_ends_the_session_at_all_workers(site: Site, browser: Browser) -> None:
    """A copy of the cookie that was taken before is good for nothing."""
    other, again = Browser(site), Browser(site, site.worker(use_cookies=False))
    other.sign_in()
    again.cookie = browser.cookie
    browser.open("/console/signout", "POST", data={"csrf_token": browser.token()})
    assert browser.open("/console/topics").status_code == 303
    assert again.open("/console/topics").status_code == 303
    assert other.knows("anna")


@pytest.mark.slow
def test_user_of_basic_credentials_is_named_and_cannot_sign_out(site: Site) -> None:
    known = {"Authorization": header("anna", PASSWORD)}
    page = site.client.get("/console/topics", headers=BROWSER | known).text
    assert "Signed in as <b>anna</b>" in page
    assert "Sign out" not in page
    assert "csrf_token" not in page


def test_router_without_users_has_nothing_to_sign_in_to(sites: Sites) -> None:
    site = sites()
    page = site.client.get("/console/signin", headers=BROWSER)
    assert "no users" in page.text
    answer = site.client.post("/console/signin", data={"user": "a", "password": "b"}, headers=JSON)
    assert (answer.status_code, answer.get_json()["code"]) == (400, "not-supported")


@pytest.mark.parametrize("site_of_link", ["cross-site"])
def test_link_of_another_site_opens_the_page_of_a_signed_in_user(
    site: Site, browser: Browser, site_of_link: str
) -> None:
    """The strict cookie comes along only with what the browser asks for from our own page."""
    followed = {
        "Sec-Fetch-Site": site_of_link,
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
        "Sec-Fetch-User": "?1",
    }
    answer = Browser(site).open("/console/topics?q=%22%3E", headers=followed)
    assert answer.status_code == 200
    assert 'http-equiv="refresh" content="0; url=/console/topics?q=%22%3E"' in answer.text
    again = browser.open("/console/topics", headers=followed | {"Sec-Fetch-Site": "same-origin"})
    assert "Signed in as <b>anna</b>" in again.text


@pytest.mark.parametrize(
    "path",
    [
        "/console",
        "/console/",
        "/console/topics/a%2Fb?tab=groups",
        "/console/groups?q=//x/../y",
        "/console/topics/a..b",
    ],
)
def test_sign_in_leads_to_own_pages(path: str) -> None:
    assert own_page(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "https://evil.example/console/",
        "//evil.example/console/",
        "/\\evil.example",
        "/console\\@evil.example",
        "/consoles",
        "/console:x@evil.example",
        "console/",
        "/events/t/g/c",
        "/console/../events/t/g/c",
        "/console/topics/../../events/t/g/c",
        "/console/%2e%2E/events/t/g/c",
        "/console/.%2e/events/t/g/c",
        "/console/topics/..",
        "/console/./topics",
        "/console/\r\nSet-Cookie: a=b",
        "/console/\n",
        "/console/topics\t",
        "/console/é",
        '/console/"><script>',
        "/console/#x",
        "/console/" + "a" * 2_000,
    ],
)
def test_sign_in_leads_nowhere_else(path: str) -> None:
    assert own_page(path) == FIRST_PAGE


def test_sign_in_with_a_bad_next_leads_to_the_first_page(site: Site) -> None:
    for goal in ("//evil.example", "/console/\r\nX: y", "/console/%2e%2e/events/t/g/c"):
        answer = Browser(site).sign_in(next_page=goal)
        assert (answer.status_code, answer.headers["Location"]) == (303, FIRST_PAGE)


def test_names_of_users_are_shown_as_text(sites: Sites, tmp_path: Path) -> None:
    name = '"><img src=x onerror=alert(1)>'
    site = sites(auth_users=str(users_file(tmp_path, **{name: PASSWORD})))
    browser = Browser(site)
    assert "<img" not in browser.sign_in(name, "wrong").text
    assert browser.sign_in(name).status_code == 303
    page = browser.open("/console/topics").text
    assert "&lt;img src=x" in page
    assert "<img" not in page


class TestSession:
    """What ends a session, and what never was one."""

    def test_ends_with_a_changed_password(self, site: Site, folder: Path, browser: Browser) -> None:
        users_file(folder, anna="another", bert=PASSWORD)
        site.app.extensions["router.reload"]()
        assert browser.open("/console/topics").status_code == 303
        assert browser.sign_in(password="another").status_code == 303
        assert browser.knows("anna")

    def test_ends_with_its_user(self, site: Site, folder: Path, browser: Browser) -> None:
        users_file(folder, bert=PASSWORD)
        site.app.extensions["router.reload"]()
        assert browser.open("/console/topics").status_code == 303

    def test_outlives_changes_of_other_users(
        self, site: Site, folder: Path, browser: Browser
    ) -> None:
        lines = (folder / "users").read_text().replace("bert:", "carl:")
        (folder / "users").write_text(lines)
        site.app.extensions["router.reload"]()
        assert browser.knows("anna")

    def test_ends_with_its_time(self, sites: Sites, folder: Path) -> None:
        site = sites(auth_users=str(folder / "users"), auth_session="0")
        browser = Browser(site)
        assert browser.sign_in().status_code == 303
        assert browser.open("/console/topics").status_code == 303

    def test_that_was_tampered_with_is_none(self, browser: Browser) -> None:
        payload, _, signature = browser.cookie.removeprefix("router-session=").partition(".")
        other = urlsafe_b64encode(urlsafe_b64decode(payload).replace(b"anna", b"bert")).decode()
        for text in (
            f"{other}.{signature}",
            f"{payload}.{signature[:-1]}",
            f"{payload}.",
            payload,
            f".{signature}",
            "",
            "." * 3_000,
            "a" * 10_000,
            "é.é",
        ):
            browser.cookie = f"router-session={text}"
            assert browser.open("/console/topics").status_code == 303, text

    def test_of_another_secret_is_none(self, sites: Sites, folder: Path, browser: Browser) -> None:
        other = Browser(sites(auth_users=str(folder / "users")))
        other.cookie = browser.cookie
        assert other.open("/console/topics").status_code == 303

    def test_token_of_a_session_is_no_session(self, browser: Browser) -> None:
        payload = browser.cookie.removeprefix("router-session=").partition(".")[0]
        browser.cookie = f"router-session={payload}.{browser.token()}"
        assert browser.open("/console/topics").status_code == 303

    def test_of_two_counts_neither(self, site: Site, browser: Browser) -> None:
        """A neighbour of this host may have set one of them."""
        other = Browser(site)
        other.sign_in("bert")
        both = Browser(site)
        both.cookie = f"{other.cookie}; {browser.cookie}"
        assert both.open("/console/topics").status_code == 303
        both.cookie = f"router-session=junk; {browser.cookie}; a=b"
        assert both.knows("anna")

    def test_is_not_made_for_a_name_that_no_cookie_holds(
        self, sites: Sites, tmp_path: Path
    ) -> None:
        name = "a" * 4_000
        site = sites(auth_users=str(users_file(tmp_path, **{name: PASSWORD})))
        answer = Browser(site).sign_in(name)
        assert answer.status_code == 400
        assert "Set-Cookie" not in answer.headers


class TestToken:
    """What a change of a signed-in user has to bring along."""

    def create(self, browser: Browser, token: str | None, **headers: str) -> int:
        form = {"name": "orders"} | ({} if token is None else {"csrf_token": token})
        return browser.open("/console/topics", "POST", data=form, headers=headers).status_code

    def test_is_in_the_form(self, site: Site, browser: Browser) -> None:
        for token in (None, "", "wrong", "é", browser.cookie):
            assert self.create(browser, token) == 403
        assert "orders" not in topics(site)
        assert self.create(browser, browser.token()) == 303

    def test_is_in_a_header(self, browser: Browser) -> None:
        token = browser.token()
        assert self.create(browser, None, **{"X-CSRF-Token": "wrong"}) == 403
        assert self.create(browser, None, **{"X-CSRF-Token": token}) == 303

    def test_of_another_session_does_not_count(self, site: Site, browser: Browser) -> None:
        other = Browser(site)
        other.sign_in()
        assert self.create(browser, other.token()) == 403

    def test_is_not_needed_with_credentials_of_the_request(self, site: Site) -> None:
        known = {"Authorization": header("anna", PASSWORD)}
        form = {"name": "orders"}
        answer = site.client.post("/console/topics", data=form, headers=BROWSER | known)
        assert answer.status_code == 303

    def test_is_in_no_query(self, browser: Browser) -> None:
        answer = browser.open(
            f"/console/topics?csrf_token={browser.token()}", "POST", data={"name": "orders"}
        )
        assert answer.status_code == 403


def test_live_tail_takes_the_session(site: Site, browser: Browser) -> None:
    site.post("/events/t", "a", headers={"Authorization": header("anna", PASSWORD)})
    accept = {"Accept": "text/event-stream"}
    path = "/console/topics/t/stream?from=earliest"
    refused = site.client.get(path, headers=accept)
    assert refused.status_code == 401
    answer = browser.open(path, headers=accept)
    assert (answer.status_code, answer.mimetype) == (200, "text/event-stream")
    answer.close()
    assert browser.open("/events/t?stream").status_code == 401


def test_tries_are_logged_with_their_addresses(site: Site) -> None:
    browser = Browser(site)
    with structlog.testing.capture_logs() as lines:
        browser.sign_in(password="wrong")
        browser.sign_in()
    said = {"request-refused", "signed in to the console"}
    refused, signed_in = [line for line in lines if line["event"] in said]
    assert (refused["event"], refused["address"]) == ("request-refused", "127.0.0.1")
    assert (signed_in["event"], signed_in["user"]) == ("signed in to the console", "anna")
    for text in map(str, lines):
        assert PASSWORD not in text
        assert "wrong" not in text.replace("password is wrong", "")


def test_form_of_a_stranger_is_small(site: Site) -> None:
    answer = Browser(site).sign_in(password="x" * 40_000)
    assert answer.status_code == 413
    answer = Browser(site).sign_in(
        password="x" * 40_000, headers={"Content-Type": "multipart/form-data; boundary=b"}
    )
    assert answer.status_code == 413


def test_credentials_of_the_request_go_before_the_session(site: Site, browser: Browser) -> None:
    bert = {"Authorization": header("bert", PASSWORD)}
    page = browser.open("/console/topics", headers=bert).text
    assert "Signed in as <b>bert</b>" in page
    assert "Sign out" not in page
    wrong = {"Authorization": header("bert", "wrong")}
    assert browser.open("/console/topics", headers=wrong).status_code == 401


def test_registry_that_is_away_is_said_and_ends_no_session(
    sites: Sites, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = sites(auth_users=str(folder / "users"), backend_timeout="10ms")
    browser = Browser(site)
    browser.sign_in()
    token = browser.token()
    fresh = Browser(site, site.worker(use_cookies=False))
    fresh.cookie = browser.cookie

    def away(*_: object) -> None:
        raise BackendUnavailableError("the registry is away")

    with monkeypatch.context() as patch:
        for name in ("get", "put", "list"):
            patch.setattr(MemoryRegistry, name, away)
        assert fresh.open("/console/topics").status_code == 503
        # A worker that has seen the session needs no registry.
        assert browser.knows("anna")
        answer = browser.open("/console/signout", "POST", data={"csrf_token": token})
        assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert fresh.knows("anna")
