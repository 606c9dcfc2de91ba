"""The page that the how-tos show works in a browser, on a site that the router lets in."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.other_site import OtherSite
from tests.docs.console import ROOT, URL, blocks
from tests.ports import free_port
from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_page_publishes_and_receives(browser: Browser, tmp_path: Path) -> None:
    (shown,) = blocks(ROOT / "docs" / "howto.md", "html")
    port = free_port()
    body = shown.replace(URL, f"http://127.0.0.1:{port}")
    assert body != shown
    with OtherSite("127.0.0.1", page=body.encode()) as site, browser.new_context() as context:
        router = Stack(tmp_path, backend_url="memory", cors_origins=site.url)
        router.port = port
        try:
            router.start()
            page = context.new_page()
            page.goto(site.url)
            expect(page.get_by_role("listitem")).to_have_text('{"customer":"anna"}')
        finally:
            router.stop()
