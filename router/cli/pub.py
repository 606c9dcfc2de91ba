"""`router pub`: standard input becomes messages."""

from __future__ import annotations

import io
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from router.cli import connecting, output, status
from router.cli.options import anywhere, as_json, examples, message_format
from router.errors import RouterError
from router.errors.quoting import quoted

if TYPE_CHECKING:
    from router.model import Message

MIN_PROGRESS_BYTES: Final = 1 << 20
MAX_REQUEST_BYTES: Final = 4 << 20
MAX_REQUEST_MESSAGES: Final = 5_000
"""Below what a router takes in one request as it comes (publish.max_batch, …max_messages)."""


@click.command(
    epilog=examples(
        "echo hello | router pub greetings",
        "router pub orders --key anna < orders.ndjson",
        "router pub orders --format json -H source=shop < orders.json",
        "router pub pictures --format raw < picture.png",
        "router sub orders --from earliest --no-follow --json | router pub copy --format ndjson",
        "tail -f app.log | router pub logs --context prod",
    )
)
@click.argument("topic", shell_complete=connecting.complete_topics)
@message_format(
    "text: each line is a message; json: each object; ndjson: each line is an object with key,"
    " value and properties, as `sub --json` prints; cambria: records; raw: all is one message."
)
@click.option("--key", help="Key of messages that have none: they stay in order in one partition.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header (property) of all messages that do not have it; repeatable.",
)
@as_json
@anywhere
def command(
    topic: str,
    form: str,
    key: str | None,
    headers: tuple[str, ...],
    as_json: bool,
    config: Path | None,
    **given: str | None,
) -> None:
    """Publish standard input to TOPIC; with text, each line that is not empty is a message.

    What has arrived is stored before more is read; the end says how many messages there were. After
    a failure or Ctrl-C that many are stored, and the rest is not.
    """
    from router.cli import formats  # noqa: PLC0415 - `--help` does without

    added = _parsed(headers)
    source: IO[bytes] = sys.stdin.buffer if sys.stdin is not None else io.BytesIO()
    total = 0
    try:
        with connecting.connected(config, **given) as there, _progress(source) as progress:
            name = f"pub-{secrets.token_hex(8)}"
            batches = formats.READERS[form](source, os.fsencode(key) if key else None)
            for number, (messages, size) in enumerate(_requests(batches, added)):
                if messages:
                    total += there.publish(topic, messages, f"{name}-{number}")
                progress.update(size)
    except RouterError:
        _report(topic, total, as_json, ended=False)
        raise
    except KeyboardInterrupt:
        _report(topic, total, as_json, ended=False)
        sys.exit(status.INTERRUPTED)
    _report(topic, total, as_json, ended=True)


def _report(topic: str, total: int, as_json: bool, *, ended: bool) -> None:
    if as_json:
        output.emit({"topic": topic, "published": total, "complete": ended})
    elif ended:
        click.echo(f"Published {total} messages to {topic}", err=True)
    elif total:
        click.echo(f"Published {total} messages to {topic}, and no more", err=True)


def _parsed(headers: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in headers:
        name, equals, value = text.partition("=")
        if not equals or not name or not text.isprintable():
            raise click.UsageError(f"--header {quoted(text)}: expected NAME=VALUE, in UTF-8.")
        found[name] = value
    return found


def _requests(
    batches: Iterator[tuple[list[Message], int]], headers: Mapping[str, str]
) -> Iterator[tuple[list[Message], int]]:
    """Yield what fits into a request, with headers, and the bytes of input that are done then."""
    for given, size in batches:
        messages = given
        begin = held = 0
        if headers:
            messages = [m._replace(properties={**headers, **m.properties}) for m in messages]
        for at, message in enumerate(messages):
            held += message.size()
            if at > begin and (held > MAX_REQUEST_BYTES or at - begin >= MAX_REQUEST_MESSAGES):
                yield messages[begin:at], 0
                begin, held = at, message.size()
        yield messages[begin:], size


def _progress(source: IO[bytes]) -> AbstractContextManager[Any]:
    """Return a progress bar on standard error, shown on a terminal where the input is long."""
    size = 0
    with suppress(OSError):  # there may be no file behind it
        found = os.fstat(source.fileno())
        size = found.st_size if stat.S_ISREG(found.st_mode) else 0
    hidden = size < MIN_PROGRESS_BYTES or not sys.stderr.isatty()
    return click.progressbar(
        length=max(size, 1), label="Publishing", file=sys.stderr, hidden=hidden
    )
