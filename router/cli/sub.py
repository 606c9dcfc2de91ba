"""`router sub`: messages of a topic go to standard output as they come."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from router.cli import connecting, status
from router.cli.connection import Tail
from router.cli.options import anywhere, examples, message_format
from router.errors import BadReadOptionError
from router.model import check_consumer_name

if TYPE_CHECKING:
    from router.backends import Start
    from router.cli.connection import Consumption, StoreConnection
    from router.model import Stored

WAIT_SECONDS: Final = 30.0
"""How long one fetch of a group waits for messages."""
FETCH_MESSAGES: Final = 1_000
SILENCE_SECONDS: Final = 2.0
"""Without --follow: silence after which nothing more is there."""


@dataclass(frozen=True, slots=True)
class _PrintOptions:
    """What to print, and when to end; `silence` in seconds, None: never."""

    topic: str
    group: str | None
    consumer: str
    start: Start | int | str
    count: int | None
    silence: float | None


@click.command(
    epilog=examples(
        "router sub orders                          what comes from now on",
        "router sub orders --from earliest          everything that is there, and what comes",
        "router sub orders --from earliest --no-follow --json > orders.ndjson",
        "router sub orders --from 2026-07-31T13:45:00Z",
        "router sub orders --group billing          go on where this group left off",
        "router sub orders --from earliest --count 10 --keys",
        "router sub orders --context prod --timeout 30",
    )
)
@click.argument("topic", shell_complete=connecting.complete_topics)
@click.option(
    "--group",
    shell_complete=connecting.complete_groups,
    help="Consumer group to read for.  [default: none, nothing is acknowledged]",
)
@click.option("--id", "consumer", default="sub", show_default=True, help="Consumer in the group.")
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    default="latest",
    show_default=True,
    help="Where to start, a group if it is new: earliest, latest, ms since 1970, a time with its"
    " zone; without a group also LEDGER.ENTRY[.INDEX]: behind the message there.",
)
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option(
    "--follow/--no-follow",
    default=True,
    show_default=True,
    help="Wait for what comes, or stop once nothing came for 2 seconds.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop once nothing came for so long.",
)
@message_format(
    "text: a value a line; json: a value a line, as JSON; ndjson: all that is known of a"
    " message, as `pub --format ndjson` takes it; cambria: records; raw: values alone."
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format ndjson.")
@click.option("--keys", is_flag=True, help="Print the key and a tab before each message.")
@click.option("--headers", is_flag=True, help="Print name=value and a tab for each header before.")
@anywhere
def command(topic: str, config: Path | None, **given: Any) -> None:
    """Print the messages of TOPIC, one a line, until Ctrl-C.

    Without --group nothing is acknowledged and no group is made. With it each message is
    acknowledged after it was printed, so none is lost however this ends; after a kill some may come
    twice.
    """
    keys, headers = given.pop("keys"), given.pop("headers")
    form, follow = given.pop("form"), given.pop("follow")
    if given.pop("as_json"):
        form = "ndjson"
    if (keys or headers) and form != "text":
        raise click.UsageError(f"--keys and --headers go with --format text, not {form}.")
    timeout: float | None = given.pop("timeout")
    reading = _PrintOptions(
        topic,
        group := given.pop("group"),
        consumer := given.pop("consumer"),
        _start(given.pop("start"), group),
        count := given.pop("count"),
        SILENCE_SECONDS if timeout is None and not follow else timeout,
    )
    if group is not None:
        check_consumer_name(group, "group")
        check_consumer_name(consumer, "consumer")
    printer = _Printer(_line(form, keys=keys, headers=headers), count)
    try:
        with connecting.connected(config, **given) as there:
            (_tail if group is None else _consume)(there, reading, printer)
    except KeyboardInterrupt:
        return  # that is how it is ended
    if count is not None and printer.printed < count:
        sys.exit(status.TRY_AGAIN)


class _Printer:
    """Writes messages to standard output, up to a number of them."""

    def __init__(self, line: Callable[[Stored], bytes], count: int | None) -> None:
        self._line = line
        self._count = count
        self.printed = 0

    def left(self) -> int | None:
        """Return how many are still to be printed, None: any number."""
        return None if self._count is None else self._count - self.printed

    def print(self, batch: list[Stored]) -> bool:
        """Print messages, and have them go out; return whether more are wanted."""
        if sys.stdout is None:
            raise BrokenPipeError
        out: IO[bytes] = sys.stdout.buffer
        for stored in batch[: self.left()]:
            out.write(self._line(stored))
            self.printed += 1
        if batch:
            out.flush()
        return self.left() != 0


def _tail(there: StoreConnection, reading: _PrintOptions, printer: _Printer) -> None:
    batches = there.tail(reading.topic, Tail(reading.start, reading.silence))
    for batch in batches:
        if not printer.print(batch):
            return


def _consume(there: StoreConnection, reading: _PrintOptions, printer: _Printer) -> None:
    start = reading.start
    assert reading.group is not None
    assert not isinstance(start, str)
    opened = there.consume(reading.topic, reading.group, reading.consumer, start)
    with closing(opened) as consumption:
        for batch in _fetched(consumption, reading.silence, printer):
            more = printer.print(batch)
            # Only now: what the output did not take comes again.
            consumption.acknowledge()
            if not more:
                return


def _fetched(
    consumption: Consumption, silence: float | None, printer: _Printer
) -> Iterator[list[Stored]]:
    last = time.monotonic()
    while True:
        wait = WAIT_SECONDS
        if silence is not None:
            wait = min(wait, last + silence - time.monotonic())
            if wait <= 0:
                return
        limit = printer.left()
        found = consumption.fetch(
            FETCH_MESSAGES if limit is None else min(limit, FETCH_MESSAGES), wait
        )
        if found:
            last = time.monotonic()
            yield found


def _line(form: str, *, keys: bool, headers: bool) -> Callable[[Stored], bytes]:
    from router.cli import formats  # noqa: PLC0415 - `--help` does without

    write = formats.WRITERS[form]
    if not (keys or headers):
        return write

    def written(stored: Stored) -> bytes:
        found = [(stored.message.key or b"")] if keys else []
        if headers:
            found += [f"{n}={v}".encode() for n, v in sorted(stored.message.properties.items())]
        return b"".join(one + b"\t" for one in found) + write(stored)

    return written


def _start(text: str, group: str | None) -> Start | int | str:
    """Return where reading starts; a text is a place. Raises BadReadOptionError."""
    from router.services.groups import moment  # noqa: PLC0415 - `--help` does without

    try:
        return moment("--from", text)
    except BadReadOptionError:
        if group is None and text[:1].isdigit() and "." in text and "T" not in text:
            return text
        raise
