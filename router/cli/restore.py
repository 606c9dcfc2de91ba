"""`router restore`: a data folder from a backup."""

from __future__ import annotations

import time
from pathlib import Path

import click

from router.broker.backup import Repository
from router.broker.backup.copying import FileCopier
from router.broker.backup.repository import LATEST, no_manifest
from router.broker.backup.restoring import restore, settle
from router.broker.disk.files import Disk
from router.broker.storage import StoreOptions
from router.cli import output
from router.cli.backup import described, failures, lines, rate_of, shown
from router.cli.options import as_json, config, data, examples, settings_for


@click.command(
    epilog=examples(
        "router restore /mnt/backups --data /var/lib/router",
        "router restore /mnt/backups --data restored --backup 20261123T010000.000Z",
    )
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--backup",
    "chosen",
    metavar="ID",
    default=LATEST,
    show_default=True,
    help="Which of the backups that `router backup DIR --list` prints.",
)
@rate_of("0")
@as_json
@data
@config
def command(
    folder: Path,
    chosen: str,
    rate: int | None,
    as_json: bool,
    config: Path | None,
    **flags: str | None,
) -> None:
    """Make a data folder of a backup in DIR; a folder that is not empty is refused.

    All checksums are verified. A restore that was cut short leaves the folder marked READ-ONLY; run
    it again. Run it as the user that runs the router.

    Exit status 65 says that the backup is damaged, 73 that DIR or the data folder cannot be used,
    or that it is not empty.
    """
    settings = settings_for(config, **flags)
    target, disk = Path(settings.text("data.dir")).absolute(), Disk()
    repository = Repository(folder.absolute())
    began = time.monotonic()
    with failures():
        manifest = repository.load(chosen)
        for name in repository.lost():
            if chosen == LATEST and name > manifest.id:
                click.echo(f"Warning: {no_manifest(name)}; it is newer", err=True)
        with shown("Restoring", manifest.size) as bar:
            restore(repository, manifest, target, FileCopier(disk, rate, bar.update), disk)
        settle(target, StoreOptions.from_settings(settings), time.time)  # noqa: TID251 - its clock
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        output.emit({"backup": described(manifest), "data": str(target), "seconds": seconds})
    lines(as_json, f"backup {manifest.id} is restored in {target}, in {seconds:.1f} s")
