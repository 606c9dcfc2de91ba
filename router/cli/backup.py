"""`router backup`: copies of a data folder while its router runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from router.broker.backup import BackupError, Manifest, Repository
from router.broker.backup.copying import FileCopier
from router.broker.backup.manifest import REGISTRY
from router.broker.backup.repository import no_manifest
from router.broker.backup.taking import Work, take
from router.broker.backup.verifying import verify
from router.broker.storage import StoreError, StoreOptions
from router.cli import output
from router.cli.options import as_json, config, data, examples, settings_for
from router.settings import Settings
from router.settings.parsing import size

NICENESS: Final = 19
"""A backup can wait for publishers, in contrast to them."""
HEADER: Final = ("BACKUP", "FILES", "BYTES", "COPIED")


def _rate(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return bytes a second; refuse a text that is no size."""
    try:
        found = None if value is None else size(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return found or None


RATE: Final = "20M"
"""What is published meanwhile keeps most of its rate; see docs/performance.md."""


def rate_of(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option that bounds the rate of copying."""
    return click.option(
        "--rate",
        metavar="BYTES",
        callback=_rate,
        default=default,
        show_default=True,
        help="Copy at most so many bytes a second, such as 20M; 0: no bound.",
    )


@click.command(
    epilog=examples(
        "router backup /mnt/backups --data /var/lib/router",
        "router backup /mnt/backups --data /var/lib/router --keep 14 --verify",
        "router backup /mnt/backups --data /var/lib/router --rate 200M",
        "router backup /mnt/backups --list",
        "router backup /mnt/backups --verify --backup latest",
    )
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Then remove all but the newest.")
@click.option("--verify", "read", is_flag=True, help="Then read every entry of the backup.")
@click.option(
    "--backup",
    "chosen",
    metavar="ID",
    help="With --verify: read this backup, or the `latest`, and take none.",
)
@click.option("--list", "listed", is_flag=True, help="Print the complete backups in DIR.")
@rate_of(RATE)
@as_json
@data
@config
def command(
    folder: Path, chosen: str | None, as_json: bool, config: Path | None, **given: Any
) -> None:
    """Copy a data folder into DIR while its router runs, or while it is stopped.

    A backup holds topics, messages, groups, streams, keys and schemas as they were at one moment:
    all that was answered before the command began, and nothing that came after that moment. What an
    earlier backup in DIR holds is not copied again. DIR should be on another disk, and holds the
    backups of one router. Older backups are removed only if the new one has no problem.

    Exit status 65 says that a backup or the data folder is damaged, 73 that DIR or the data folder
    cannot be used, 75 that another backup is being taken or the broker ended meanwhile: take the
    backup again.
    """
    keep, read, listed, rate = (given.pop(name) for name in ("keep", "read", "listed", "rate"))
    if listed and (read or keep or chosen):
        raise click.UsageError("--list prints backups, and does nothing else.")
    if chosen and not read:
        raise click.UsageError("--backup goes with --verify.")
    with suppress(OSError):
        os.nice(NICENESS)
    repository = Repository(folder.absolute())
    with failures():
        if listed:
            _list(repository, as_json)
        report: dict[str, Any] = {}
        lost = [no_manifest(name) for name in repository.lost()]
        lines(as_json, *lost)
        if chosen:
            manifest = repository.load(chosen)
        else:
            settings = settings_for(config, **given)
            manifest = _take(repository, settings, rate, as_json, report)
        found = _verify(repository, manifest, rate, as_json) if read else [*manifest.missing]
        problems = lost + found
        if keep and not found:  # else the older ones may be what is needed
            report["removed"] = repository.prune(keep)
            lines(as_json, *(f"removed {name}" for name in report["removed"]))
        report |= {"backup": described(manifest), "verified": read, "problems": problems}
    if as_json:
        output.emit(report)
    raise SystemExit(os.EX_DATAERR if problems else 0)


def _take(
    repository: Repository, settings: Settings, rate: int | None, as_json: bool, report: Any
) -> Manifest:
    # The process that holds messages is another one: the path of a request starts none of this.
    from router.node.administration import BackupCalls  # noqa: PLC0415 - --list needs no connection
    from router.node.spawn import open_link  # noqa: PLC0415 - as above

    folder = Path(settings.text("data.dir")).absolute()
    if not (folder / REGISTRY).exists():
        raise BackupError(f"{folder} holds no data: name the folder with --data", os.EX_CANTCREAT)
    if repository.folder.resolve().is_relative_to(folder.resolve()):
        raise BackupError(
            f"{repository.folder} is in the data folder: what damages the one damages the other",
            os.EX_CANTCREAT,
        )
    began = time.monotonic()
    with closing(open_link(settings)) as link, shown("Copying") as bar:
        copier = FileCopier(repository.disk, rate, bar.update)
        reserve = StoreOptions.from_settings(settings).reserve
        work = Work(folder, repository, copier, bar.lengthen, reserve)
        manifest = take(work, BackupCalls(link), datetime.now(UTC))
    report["seconds"] = round(time.monotonic() - began, 3)
    lines(
        as_json,
        f"backup {manifest.id}: {len(manifest.files) + len(manifest.segments)} files,"
        f" {manifest.size} bytes, of which {manifest.copied} were copied"
        f" in {report['seconds']:.1f} s",
        *(
            f"{name} is not whole in the data folder: `router check` says more"
            for name in manifest.missing
        ),
    )
    return manifest


def _verify(
    repository: Repository, manifest: Manifest, rate: int | None, as_json: bool
) -> list[str]:
    with shown("Reading", manifest.size) as bar:
        copier = FileCopier(repository.disk, rate, bar.update)
        problems = list(verify(repository, manifest, copier))
    state = "every entry was read" if not problems else f"{len(problems)} problems"
    lines(as_json, *problems, f"backup {manifest.id}: {state}")
    return problems


def _list(repository: Repository, as_json: bool) -> None:
    found, problems = [], [no_manifest(name) for name in repository.lost()]
    for name in repository.ids():
        try:
            found.append(repository.load(name))
        except BackupError as error:
            problems.append(str(error))
    if as_json:
        backups = [described(manifest) for manifest in found]
        output.emit({"backups": backups, "problems": problems})
    else:
        rows = [(m.id, len(m.files) + len(m.segments), m.size, m.copied) for m in found]
        lines(False, *output.table(HEADER if output.for_people() else (), rows), *problems)
    raise SystemExit(os.EX_DATAERR if problems else 0)


def described(manifest: Manifest) -> dict[str, Any]:
    """Return what is said of a backup."""
    return {
        "id": manifest.id,
        "time": manifest.time,
        "build": manifest.build,
        "history": manifest.history,
        "files": len(manifest.files) + len(manifest.segments),
        "bytes": manifest.size,
        "copied": manifest.copied,
        "missing": list(manifest.missing),
    }


def lines(as_json: bool, *found: str) -> None:
    """Print lines for people."""
    for line in () if as_json else found:
        click.echo(line)


@contextmanager
def failures() -> Iterator[None]:
    """End the command with the sentence and the status of a failure."""
    try:
        yield
    except BackupError as error:
        status, sentence = error.status, str(error)
    except StoreError as error:
        status, sentence = os.EX_DATAERR, str(error)
    except OSError as error:
        status, sentence = os.EX_CANTCREAT, f"the backups cannot be used: {error}"
    else:
        return
    click.echo(f"Error: {sentence}", err=True)
    raise SystemExit(status)


class Bar:
    """A progress bar on standard error, where that is a terminal."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self.update = bar.update

    def lengthen(self, size: int) -> None:
        """Learn how many bytes are to come."""
        self._bar.length = max(size, 1)


@contextmanager
def shown(label: str, size: int = 1) -> Iterator[Bar]:
    """Show the progress of so many bytes."""
    hidden = not sys.stderr.isatty()
    with click.progressbar(length=max(size, 1), label=label, file=sys.stderr, hidden=hidden) as bar:
        yield Bar(bar)
