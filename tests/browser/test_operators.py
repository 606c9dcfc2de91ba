"""What operators do in the console: sorting tables, ending connections, questions before harm."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer
from playwright.sync_api import Browser, Page, expect

from tests.browser.pages import bury
from tests.browser.visitor import Visitor
from tests.ports import free_port
from tests.system.stack import Stack
from tests.system.traffic import create, post

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, int]]:
    """A router with a listener for Kafka, and its port."""
    port = free_port()
    stack = Stack(tmp_path_factory.mktemp("served"), broker_kafka=f"127.0.0.1:{port}")
    stack.start()
    yield stack, port
    stack.stop()


def test_connection_is_listed_and_ended(browser: Browser, served: tuple[Stack, int]) -> None:
    stack, port = served
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as client,
        Visitor(browser, stack.url) as visitor,
    ):
        page, peer = visitor.page(), client.getsockname()[1]
        page.goto("/console/connections")
        row = page.get_by_role("table", name="Connections").get_by_role("row")
        mine = row.filter(has_text=f"127.0.0.1:{peer}")
        expect(mine).to_contain_text("kafka")
        mine.get_by_role("button", name="Disconnect").click()
        assert client.recv(1) == b""
        page.goto("/console/connections")
        expect(mine).to_have_count(0)
        visitor.check()


def test_transaction_is_shown_and_aborted(browser: Browser, served: tuple[Stack, int]) -> None:
    stack, port = served
    create(stack, "held", 1)
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "transactional.id": "holder"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("held", b"v")
    producer.flush(30)
    with Visitor(browser, stack.url) as visitor:
        page = visitor.page()
        page.goto("/console/transactions")
        mine = page.get_by_role("table", name="Transactions").get_by_role("row")
        mine = mine.filter(has_text="holder")
        expect(mine).to_contain_text("open")
        mine.get_by_role("link").click()
        expect(page.get_by_role("table", name="Messages")).to_contain_text("held")
        page.get_by_role("button", name="Abort transaction").click()
        expect(page.get_by_text("No transaction is open.")).to_be_visible()
        visitor.check()
    with pytest.raises(KafkaException):
        producer.commit_transaction(30)


def names(page: Page) -> list[str]:
    return (
        page.get_by_role("table", name="Topics").locator("tbody td:first-child").all_inner_texts()
    )


def test_topics_are_sorted_by_a_column(page: Page, site: Stack) -> None:
    for name, messages in (("sorted-a", 9), ("sorted-b", 100), ("sorted-c", 20)):
        create(site, name, 1)
        post(site, name, "\n".join("x" * messages))
    page.goto("/console/topics?q=sorted-")
    assert names(page) == ["sorted-a", "sorted-b", "sorted-c"]
    head = page.get_by_role("columnheader", name="Messages")
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert names(page) == ["sorted-b", "sorted-c", "sorted-a"]
    head.get_by_role("button").click()
    assert names(page) == ["sorted-a", "sorted-c", "sorted-b"]


def test_all_letters_of_a_page_are_selected_at_once(page: Page, site: Stack) -> None:
    dead = "selected.dlq"
    create(site, dead, 1)
    bury(site, dead, "elsewhere", "no JSON", "no JSON")
    page.goto(f"/console/dead-letters/{dead}")
    every = page.get_by_role("checkbox", name="All letters of this page")
    every.check()
    discard = page.get_by_role("button", name="Discard selected")
    discard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("2 done.")
    expect(page.get_by_text("0 waiting")).to_be_visible()
    expect(every).not_to_be_checked()
    expect(discard).to_be_focused()


@pytest.mark.parametrize("script", [True, False])
def test_all_dead_letters_are_discarded_after_a_question(
    browser: Browser, site: Stack, script: bool
) -> None:
    dead = f"asked-{script}.dlq"
    create(site, dead, 1)
    bury(site, dead, "elsewhere", "no JSON", "no JSON")
    with Visitor(browser, site.url, java_script_enabled=script) as visitor:
        page = visitor.page()
        page.goto(f"/console/dead-letters/{dead}")
        expect(page.get_by_text("2 waiting")).to_be_visible()
        page.get_by_role("button", name="Discard all").click()
        if script:
            page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
            expect(page.get_by_text("2 waiting")).to_be_visible()
            page.get_by_role("button", name="Discard all").click()
            page.get_by_role("dialog").get_by_role("button", name="Discard").click()
        else:
            expect(page.get_by_role("heading", level=1)).to_contain_text("Discard all")
            page.get_by_role("button", name="Discard all").click()
        expect(page.get_by_role("status")).to_have_text("2 done.")
        expect(page.get_by_text("0 waiting")).to_be_visible()
        visitor.check()
