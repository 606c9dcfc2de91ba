"""`/docs` in a browser: Swagger UI under its own policy, trying routes out on this router."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]


def test_route_is_found_and_tried_out_in_the_browser(site: Stack, page: Page) -> None:
    page.goto(f"{site.url}/docs")
    expect(page.get_by_role("heading", name=re.compile("^Dragoman"))).to_be_visible()
    page.locator("#operations-tag-Operation").click()
    operation = page.locator("#operations-Operation-ops_health")
    operation.click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    answer = operation.locator(".live-responses-table")
    expect(answer).to_contain_text('"status": "up"')
    expect(answer).to_contain_text("200")
    # Swagger UI's own line for a shell.
    expect(operation.locator(".curl-command")).to_contain_text(f"{site.url}/health")
