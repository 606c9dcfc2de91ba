"""The messages of the demo, and a run on a store that does not have all that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from router.cli.contexts import Context
from router.cli.demo_messages import DemoMessages
from router.cli.demo_run import DEVICES, FIRST_MESSAGES, MAX_TICK_MESSAGES, TOPICS, Demo, remove
from router.cli.remote import RemoteConnection
from tests.unit.cli.servers import live
from tests.unit.web.applications import Site


@pytest.fixture
def there() -> Iterator[RemoteConnection]:
    """A connection to an application over the store in memory, which has no streams."""
    site = Site({})
    with live(site) as url, closing(RemoteConnection(Context(url), print)) as connection:
        yield connection
    site.close()


def test_run_goes_without_what_the_store_does_not_have(there: RemoteConnection) -> None:
    reported: list[str] = []
    demo = Demo(there, DemoMessages(1), reported.append)
    demo.create()
    (reason,) = reported
    assert reason.startswith("The demo goes without streams: ")
    assert set(demo.topics) == set(TOPICS) - {DEVICES}
    demo.run(20, 0)
    assert {topic.name for topic in there.topics()} == set(demo.topics)
    assert set(remove(there)) == set(demo.topics)
    assert there.topics() == []


def test_what_was_due_in_a_long_pause_is_not_made_up_for(there: RemoteConnection) -> None:
    times = iter([0.0, 0.0, 1e6, 1e6])
    demo = Demo(
        there,
        DemoMessages(1),
        lambda reason: None,
        clock=lambda: next(times),
        sleep=lambda seconds: None,
    )
    demo.create()
    demo.run(1_000, 1)
    messages = demo.published - demo.dead_letters
    assert FIRST_MESSAGES < messages <= FIRST_MESSAGES + MAX_TICK_MESSAGES


def test_same_seed_makes_the_same_messages() -> None:
    def made(seed: int) -> list[object]:
        messages = DemoMessages(seed)
        each = (messages.order, messages.click, messages.customer, messages.reading)
        return [make() for _ in range(50) for make in each]

    assert made(7) == made(7)
    assert made(7) != made(8)
