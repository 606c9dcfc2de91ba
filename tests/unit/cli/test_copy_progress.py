"""What `router copy` shows on a terminal fits into one line of it, and is taken away again."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios

import pytest

from router.cli import copy_progress
from router.cli.copy_progress import CopyProgress


def shown_on(screen: str, columns: int) -> list[str]:
    """Return the lines that a terminal shows of what it was sent."""
    lines, at = [""], 0
    for character in screen.replace("\r\n", "\n"):
        if character == "\r":
            at = 0
        elif character == "\n":
            lines, at = [*lines, ""], 0
        else:
            if at == columns:
                lines, at = [*lines, ""], 0
            lines[-1] = lines[-1][:at].ljust(at) + character + lines[-1][at + 1 :]
            at += 1
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("columns", [1, 30, 60, 78, 200])
def test_progress_takes_one_line_of_a_terminal_and_leaves_none(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.set_blocking(outer, False)
    with os.fdopen(outer, "rb") as printed, os.fdopen(inner, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr(copy_progress, "LINE_SECONDS", 0.0)
        progress, screen = CopyProgress(), ""
        progress.total = 10**6
        for count in (0, 10, 123_456, 999_999, 5_000_000):
            progress.show(count, count * 1_000)
            screen += (printed.read() or b"").decode()
            [line] = shown_on(screen, columns)
            assert "messages" in line or columns < 40
        progress.notify("end")
        screen += (printed.read() or b"").decode()
    assert "\x1b" not in screen
    assert "".join(shown_on(screen, columns)) == "end"
