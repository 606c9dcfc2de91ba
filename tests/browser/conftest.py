"""One browser and one router for all tests of this folder, and pages that report what they do.

Playwright's event loop counts as running in the main thread as long as the browser is open: it is
closed with the last test of this folder, so that tests elsewhere may run loops of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.corpus import USERS
from tests.browser.pages import PASSWORD, USER, Routers, fill, new_site, sign_in
from tests.browser.visitor import PATIENCE_MS, Visitor
from tests.servers.chromium import executable
from tests.system.stack import Stack
from tests.system.traffic import ask
from tests.unit.web.applications import CHEAP, header


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A Chromium without a window."""
    expect.set_options(timeout=PATIENCE_MS)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=executable()) as opened,
    ):
        yield opened


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A router without users; tests keep apart by the names of their topics."""
    stack = new_site(tmp_path_factory.mktemp("site"))
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A router with users, some of whose names are markup; `anna` owns a topic."""
    folder = tmp_path_factory.mktemp("guarded")
    password = CHEAP.hash(PASSWORD)
    names = (USER, "bob", *USERS)
    (folder / "users").write_text("".join(f"{name}:{password}\n" for name in names))
    stack = Stack(folder, auth_users=str(folder / "users"), auth_attempts_per_minute="0")
    stack.start()
    user = {"Authorization": header(USER, PASSWORD)}
    made = json.dumps({"topicName": "owned", "partitionCount": 1}).encode()
    for path, body in (("/topics/create", made), ("/apiKeys/create", b"{}")):
        answer = ask(stack, "POST", path, body, {"Content-Type": "application/json"} | user)
        assert answer.status == 200, answer.body
    yield stack
    stack.stop()


@pytest.fixture(scope="package")
def routers(browser: Browser, site: Stack, guarded: Stack) -> Routers:
    """Both routers, with what the pages of the table show, and the session of a user."""
    fill(site)
    with Visitor(browser, guarded.url) as visitor:
        page = visitor.page()
        page.goto("/console/")
        sign_in(page)
        return Routers(site, guarded, visitor.context.storage_state())


@pytest.fixture
def visitor(browser: Browser, site: Stack) -> Iterator[Visitor]:
    """A new user of the console, in whose pages nothing may go wrong."""
    with Visitor(browser, site.url) as made:
        yield made
        made.check()


@pytest.fixture
def page(visitor: Visitor) -> Page:
    """An empty page of the visitor's."""
    return visitor.page()
