"""One browser and one router for all tests of this folder, and pages that report what they do.

Playwright's event loop counts as running in the main thread as long as the browser is open: it is
closed with the last test of this folder, so that tests elsewhere may run loops of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.pages import fill
from tests.browser.visitor import PATIENCE_MS, Visitor
from tests.servers.chromium import executable
from tests.system.stack import Stack


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
    stack = Stack(tmp_path_factory.mktemp("site"), "--workers", "2")
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture(scope="package")
def filled(site: Stack) -> Stack:
    """The router, with what the pages of the table show."""
    fill(site)
    return site


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
