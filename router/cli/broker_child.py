"""The node's broker as a process of its own: the lock that it runs under, its start, its ends."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import click

from router.broker.folder import LOCK, MARK
from router.cli.supervise import Child, Exit, GaveUpError, meaning
from router.process import supervised
from router.process.build import module_command, module_path
from router.settings import Settings, environment

STOP_SECONDS: Final = 15.0
MAX_EARLY_DEATHS: Final = 5
# Exit statuses after which a start would end the same way: damaged data, no folder, bad settings.
_HOPELESS: Final = {os.EX_USAGE, os.EX_DATAERR, os.EX_CANTCREAT, os.EX_CONFIG}


def supervise(settings: Settings) -> supervised.Supervision:
    """Return the lock by which this process alone keeps a broker running on the data folder.

    Exits with a sentence where another process has it.
    """
    try:
        return supervised.take(Path(settings.text("data.dir")).absolute())
    except supervised.SupervisedError as error:
        click.echo(f"router: {error}", err=True)
        raise SystemExit(error.status) from error


def run(settings: Settings) -> NoReturn:
    """Become the broker: it takes the place of this process."""
    folder = Path(settings.text("data.dir")).absolute()
    command = [*module_command("router.broker"), "--data", str(folder), "--stay"]
    variables = {**os.environ, **environment(settings), "PYTHONPATH": module_path()}
    os.execve(command[0], command, variables)  # noqa: S606 - no shell is wanted


def child(settings: Settings) -> Child:
    """Return the broker as a child to supervise."""
    folder = Path(settings.text("data.dir"))
    return Child(
        "the broker",
        run=partial(run, settings),
        judge=lambda end: judge(end, folder),
        stop_timeout=STOP_SECONDS,
        reload=signal.SIGHUP,
    )


def judge(end: Exit, folder: Path) -> None:
    """Let a broker start again unless it would end the same way; it has said itself why.

    A folder that another broker holds (EX_TEMPFAIL) is waited for: this supervisor has its lock, so
    that broker leaves.
    """
    if (folder / MARK).exists() or end.status in _HOPELESS:
        raise GaveUpError(
            f"the broker does not start on {folder} ({meaning(end.status)});"
            f" `router check --data {folder}` says what is wrong",
            max(end.status, os.EX_DATAERR),
        )
    if 0 < end.status < os.EX_IOERR and end.early_deaths >= MAX_EARLY_DEATHS:
        raise GaveUpError(f"the broker cannot start ({meaning(end.status)})", end.status)


def started_by(folder: Path, supervisor: int) -> bool:
    """Return whether the broker that holds the folder is a child of this process."""
    try:
        holder = (folder / LOCK).read_text(encoding="ascii").strip()
        status = Path(f"/proc/{int(holder)}/stat").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    # The second field, the name, may hold blanks and brackets.
    return status.rpartition(")")[2].split()[1] == str(supervisor)
