"""What `router copy` says while it runs: one line that changes on a terminal, else a line at times.

All of it goes to standard error; standard output has the summary.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final

import click

LINE_SECONDS: Final = 0.5
LOG_SECONDS: Final = 10.0
RATE_SPAN_SECONDS: Final = 10.0
BAR_CHARACTERS: Final = 24
UNKNOWN_COLUMNS: Final = 80


class CopyProgress:
    """Progress of a copy; `total` messages are there, as far as stores count them."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._shown = 0
        self._next = time.monotonic() + (LINE_SECONDS if self._terminal else LOG_SECONDS)
        self._samples: list[tuple[float, int, int]] = []
        self._count = 0
        self._done = "messages"
        self.total = 0

    def notify(self, sentence: str) -> None:
        """Print a sentence on a line of its own."""
        with self._lock:
            self._clear()
            click.echo(sentence, err=True)

    def show(self, messages: int, size: int) -> None:
        """Show how many messages and bytes are copied, if it is time to."""
        now = time.monotonic()
        self._samples.append((now, messages, size))
        while len(self._samples) > 2 and now - self._samples[0][0] > RATE_SPAN_SECONDS:
            del self._samples[0]
        if now < self._next:
            return
        self._next = now + (LINE_SECONDS if self._terminal else LOG_SECONDS)
        line = self._line(messages, size)
        with self._lock:
            self._clear()
            click.echo(line, err=True, nl=not self._terminal)
            self._shown = len(line) if self._terminal else 0

    def restart(self, total: int) -> None:
        """Begin to count messages that are compared, of so many, which `advance` adds to."""
        with self._lock:
            self._clear()
        self._samples.clear()
        self.total, self._count, self._done = total, 0, "messages compared"

    def advance(self, messages: int) -> None:
        """Show that so many messages more are done."""
        self._count += messages
        self.show(self._count, 0)

    def end(self) -> None:
        """Take the line away."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._shown:
            click.echo(f"\r{' ' * self._shown}\r", err=True, nl=False)
            self._shown = 0

    def _line(self, messages: int, size: int) -> str:
        first, last = self._samples[0], self._samples[-1]
        seconds = max(0.001, last[0] - first[0])
        rate, speed = (last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds
        total = max(self.total, messages)
        line = f"{messages:,} of {total:,} {self._done}, {rate:,.0f}/s"
        if speed:
            line += f", {speed / 1e6:,.1f} MB/s"
        if 0 < messages < total and rate > 0:
            line += f", {_time((total - messages) / rate)} left"
        if not self._terminal:
            return line
        # A line that is wrapped could not be taken away again.
        limit = _columns() - 1
        done = BAR_CHARACTERS * messages // max(1, total)
        bar = f"[{'#' * done}{'.' * (BAR_CHARACTERS - done)}] "
        return line[:limit] if len(bar + line) > limit else bar + line


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or UNKNOWN_COLUMNS
    except (OSError, ValueError):
        return UNKNOWN_COLUMNS


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
