"""A topic becomes compacted on its page, and is compacted by a button."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.pages import produce
from tests.processes import wait_until
from tests.system.stack import Stack
from tests.system.traffic import create

pytestmark = [pytest.mark.system, pytest.mark.slow]

TOPIC = "prices"
SETTINGS = f"/console/topics/{TOPIC}?tab=settings"


def test_topic_becomes_compacted_and_is_compacted(page: Page, site: Stack) -> None:
    create(site, TOPIC, 2)
    produce(site, TOPIC, [{"key": "tea", "value": str(n)} for n in range(3)])
    page.goto(SETTINGS)
    policy = page.get_by_role("combobox", name="Cleanup policy")
    expect(policy).to_have_value("delete")
    expect(page.get_by_text("Last compaction: none since the broker started")).to_be_visible()
    policy.select_option("compact,delete")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("listitem").filter(has_text="Cleanup policy: delete")).to_contain_text(
        "becomes compact,delete."
    )
    page.get_by_role("button", name="Change topic").click()
    expect(policy).to_have_value("compact,delete")
    found = page.request.get(f"/topics/{TOPIC}/latest/tea").json()
    assert found["value"] == "2"
    page.get_by_role("button", name="Compact").click()
    expect(page.get_by_text("Last compaction: ")).to_be_visible()

    def compacted() -> bool:
        data = page.request.get(f"{SETTINGS}&format=json").json()
        return bool(data["compaction"]["status"] == "SUCCESS")

    wait_until(compacted, 30)
    page.reload()
    expect(page.get_by_text("Last compaction: done")).to_be_visible()
    policy.select_option("compact")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Change topic").click()
    expect(policy).to_have_value("compact")
    assert page.request.get(f"/topics/{TOPIC}").json()["cleanupPolicy"] == "compact"
