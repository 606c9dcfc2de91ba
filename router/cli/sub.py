"""`router sub`: messages of a topic go to standard output as they come."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from router import log
from router.backends import Start
from router.cli.options import examples, settings_for, store
from router.cli.store import Store, clock, opened
from router.errors import RouterError
from router.metrics import Metrics
from router.model import Stored, Subscription, check_consumer_name
from router.services.consume import ConsumeOptions, PollMailbox, Present, Subscriber, Wish
from router.services.groups import moment

WAIT: Final = 30.0


@click.command(
    epilog=examples(
        "router sub orders                          what comes from now on",
        "router sub orders --from earliest          everything that is there, and what comes",
        "router sub orders --from 2026-07-31T13:45:00Z",
        "router sub orders --group billing          go on where this group left off",
        "router sub orders --from earliest --count 10 --keys",
    )
)
@click.argument("topic")
@click.option("--group", help="Consumer group to read for.  [default: a new one]")
@click.option("--id", "consumer", default="sub", show_default=True, help="Consumer in the group.")
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    default=Start.LATEST.value,
    show_default=True,
    help="Where a new group starts: earliest, latest, ms since 1970, or a time with its zone.",
)
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--keys", is_flag=True, help="Print the key and a tab before each message.")
@store
def command(topic: str, count: int | None, keys: bool, config: Path | None, **given: Any) -> None:
    """Print the messages of TOPIC, one a line, until Ctrl-C; each is acknowledged once printed.

    Without --group a new group is made, and forgotten at the end; if this command is killed, the
    router forgets it some days after its last poll (retention.groups).
    """
    named = given.pop("group")
    group = named or f"sub-{secrets.token_hex(4)}"
    consumer, start = given.pop("consumer"), moment("--from", given.pop("start"))
    check_consumer_name(group, "group")
    check_consumer_name(consumer, "consumer")
    with opened(settings_for(config, **given)) as found, suppress(KeyboardInterrupt):
        # What is logged must not get between the messages.
        log.configure(found.settings.text("log.level"), found.settings.text("log.format"))
        subscription = Subscription(found.topic(topic), group)
        wish = Wish(subscription, consumer, WAIT, count or 1_000, start=start)
        with nullcontext() if named else _forgotten(found, subscription):
            for batch in _batches(_subscriber(found), wish, count):
                _print(batch, keys=keys)


def _print(batch: list[Stored], *, keys: bool) -> None:
    for stored in batch:
        key = (stored.message.key or b"") + b"\t" if keys else b""
        sys.stdout.buffer.write(key + stored.message.value + b"\n")
    sys.stdout.buffer.flush()


@contextmanager
def _forgotten(found: Store, subscription: Subscription) -> Iterator[None]:
    """Forget a group that only this command knows, however it ends."""
    try:
        yield
    finally:
        # Without a broker or topic there is nothing to clean up, and the end has its own reason.
        with suppress(RouterError):
            found.backend.unsubscribe(subscription, found.timeout)


def _batches(subscriber: Subscriber, wish: Wish, count: int | None) -> Iterator[list[Stored]]:
    """Yield what each poll brings; asking for more says that it was printed."""
    left = count
    while left is None or left > 0:
        limit = wish.limit if left is None else left
        poll = subscriber.poll(replace(wish, limit=limit), PollMailbox(), Present())
        try:
            yield poll.messages
            poll.delivered()
        finally:
            poll.abandon()
        if left is not None:
            left -= len(poll.messages)


def _subscriber(found: Store) -> Subscriber:
    options = ConsumeOptions.of(found.settings)
    return Subscriber(found.backend, found.node, found.directory(), options, Metrics(), clock)
