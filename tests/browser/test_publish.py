"""Publishing in the browser: drafts, Ctrl+Enter, placeholders, and a series that is stopped."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from tests.system.stack import Stack
from tests.system.traffic import ask, create, poll

JSON = {"Content-Type": "application/json"}

pytestmark = [pytest.mark.system, pytest.mark.slow]


def more(page: Page, **fields: str) -> None:
    page.get_by_text("Headers, file, repeat").click()
    for name, value in fields.items():
        page.get_by_role("textbox", name=name.replace("_", " "), exact=True).fill(value)


def test_draft_is_there_after_a_reload_and_is_sent_by_ctrl_enter(page: Page, site: Stack) -> None:
    create(site, "drafted", 1)
    page.goto("/console/topics/drafted")
    message = page.get_by_role("textbox", name="Message", exact=True)
    message.fill("half a thought")
    page.get_by_role("textbox", name="Key", exact=True).fill("anna")
    page.reload()
    expect(message).to_have_value("half a thought")
    expect(page.get_by_role("textbox", name="Key", exact=True)).to_have_value("anna")
    message.press("Control+Enter")
    expect(page.get_by_role("status")).to_have_text("1 message stored")
    assert poll(site, "drafted/g/1", 5, "from=earliest").json == ["half a thought"]


def test_placeholders_are_filled_in_for_each_message(page: Page, site: Stack) -> None:
    create(site, "filled", 1)
    page.goto("/console/topics/filled")
    page.get_by_role("textbox", name="Message", exact=True).fill("{{i}} {{uuid}} {{now}}")
    more(page, Repeat="3")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_role("status")).to_have_text("3 messages stored")
    found = [text.split() for text in poll(site, "filled/g/1", 5, "from=earliest").json]
    assert [one[0] for one in found] == ["1", "2", "3"]
    assert len({one[1] for one in found}) == 3
    assert all(len(one[1]) == 36 and one[2].endswith("Z") for one in found)


def test_series_at_a_rate_is_stopped(page: Page, site: Stack) -> None:
    create(site, "paced", 1)
    page.goto("/console/topics/paced")
    page.get_by_role("textbox", name="Message", exact=True).fill("tick")
    more(page, Repeat="9999", Messages_a_second="20")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_role("progressbar", name="Published")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("of 9999")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_contain_text("; stopped")
    expect(page.get_by_role("button", name="Publish", exact=True)).to_be_enabled()


def test_template_is_saved_loaded_and_deleted(page: Page, site: Stack) -> None:
    create(site, "templated", 1)
    page.goto("/console/topics/templated")
    message = page.get_by_role("textbox", name="Message", exact=True)
    name = page.get_by_label("Template", exact=True)
    message.fill('{"id": 1}')
    name.fill("first")
    page.get_by_role("button", name="Save", exact=True).click()
    message.fill("other")
    page.reload()
    expect(message).to_have_value("other")
    name.fill("first")
    expect(message).to_have_value('{"id": 1}')
    page.get_by_role("button", name="Delete", exact=True).click()
    message.fill("other")
    name.fill("first")
    expect(message).to_have_value("other")


def test_messages_stand_beside_the_form_where_it_is_wide(page: Page, site: Stack) -> None:
    create(site, "beside", 1)
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto("/console/topics/beside")
    message = page.get_by_role("textbox", name="Message", exact=True)
    latest = page.get_by_role("log", name="Latest messages")
    empty = latest.get_by_text("There are no messages yet.")
    expect(empty).to_be_visible()
    for text in ("one", "two"):
        message.fill(text)
        page.get_by_role("button", name="Publish", exact=True).click()
        expect(latest.get_by_role("article").first).to_contain_text(text)
    expect(empty).to_have_count(0)
    left, right = message.bounding_box(), latest.bounding_box()
    assert left is not None
    assert right is not None
    assert left["x"] + left["width"] < right["x"]
    page.set_viewport_size({"width": 1000, "height": 800})
    page.reload()
    expect(message).to_be_visible()
    expect(latest).to_be_hidden()


def test_example_of_the_schema_is_published_by_it(page: Page, site: Stack) -> None:
    create(site, "described", 1)
    definition = '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'
    schema = {"type": "JSON", "schema": definition, "properties": {}}
    path = "/admin/v2/schemas/public/default/described/schema"
    assert ask(site, "POST", path, json.dumps(schema).encode(), JSON).status == 200
    page.goto("/console/topics/described")
    page.get_by_role("button", name="Example by schema").click()
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_role("status")).to_have_text("1 message stored")
    assert poll(site, "described/g/1", 5, "from=earliest").json == ['{"id":0}']
