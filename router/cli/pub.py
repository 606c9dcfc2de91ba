"""`router pub`: lines of standard input become messages."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO, Final, Protocol

import click

from router.cli.options import examples, settings_for, store
from router.cli.store import Store, clock, opened
from router.metrics import Metrics
from router.model import Message, Principal
from router.services.idempotency import RequestNames
from router.services.publish import Publisher, PublishOptions

CHUNK: Final = 1 << 18
LONGEST_LINE: Final = 8 << 20
LONG_INPUT: Final = 1 << 20


class Progress(Protocol):
    """What is told how many bytes are done."""

    def update(self, n_steps: int) -> None:
        """Add bytes that are published."""
        ...


class _Silent:
    def update(self, n_steps: int) -> None:
        """Keep quiet."""


@click.command(
    epilog=examples(
        "echo hello | router pub greetings",
        "router pub orders --key anna < orders.ndjson",
        "tail -f app.log | router pub logs",
    )
)
@click.argument("topic")
@click.option("--key", help="Key of all messages: they stay in order in one partition.")
@store
def command(topic: str, key: str | None, config: Path | None, **flags: str | None) -> None:
    """Publish each line of standard input to TOPIC as a message; empty lines are skipped.

    Each chunk of lines is stored before the next is read; the end says how many there were.
    """
    source = sys.stdin.buffer
    with opened(settings_for(config, **flags)) as found, _progress(source) as progress:
        publisher = _publisher(found)
        name, total = found.topic(topic), 0
        for lines, size in chunks(source):
            messages = [Message(line, key.encode() if key else None) for line in lines]
            total += publisher.publish(name, messages, Principal()).count
            progress.update(size)
    click.echo(f"Published {total} messages to {topic}", err=True)


def chunks(source: IO[bytes]) -> Iterator[tuple[list[bytes], int]]:
    """Yield the lines that have arrived, without waiting for a full chunk, and their bytes."""
    rest: list[bytes] = []
    while data := source.read1(CHUNK):  # type: ignore[attr-defined] # buffered readers have it
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            yield _lines(b"".join([*rest, head])), len(data)
            rest = [tail]
        else:
            rest.append(data)
            # What is too long for a message is handed on to be refused, before it fills the memory.
            too_long = sum(map(len, rest)) > LONGEST_LINE
            yield ([b"".join(rest)] if too_long else []), len(data)
    yield _lines(b"".join(rest)), 0


def _lines(text: bytes) -> list[bytes]:
    return [line for line in (part.rstrip(b"\r") for part in text.split(b"\n")) if line]


def _progress(source: IO[bytes]) -> AbstractContextManager[Progress]:
    """Return a progress bar on standard error where the input is a long file."""
    with suppress(OSError):  # there may be no file behind it
        status = os.fstat(source.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_size >= LONG_INPUT:
            return click.progressbar(length=status.st_size, label="Publishing", file=sys.stderr)
    return nullcontext(_Silent())


def _publisher(found: Store) -> Publisher:
    options = PublishOptions.of(found.settings)
    names = RequestNames(found.node.registry, found.settings.seconds("backend.timeout"))
    return Publisher((found.backend, found.directory(), names), options, Metrics(), clock)
