"""`router migrate`: keys, owners, access lists and blacklist of an original Message Router."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from router.access.authorizer import TOPIC_RECORDS
from router.cli import output
from router.cli.options import as_json, examples, settings_for, store, zookeeper
from router.cli.store import CommandStore, opened
from router.errors import SettingError
from router.migration import cipher
from router.migration.original import ROOT, Original, read
from router.services.record_moving import MoveStep, Standing, compare, write

SERVERS: Final = "config.zk.servers"
ROOT_PROPERTY: Final = "config.zk.root"


@click.command(
    epilog=examples(
        "router migrate --from-zookeeper zk:2181 --properties MsgRtrApi.properties",
        "                                          print what would be imported",
        "router migrate --from-zookeeper zk:2181 --properties MsgRtrApi.properties --apply",
        "router migrate --from-zookeeper zk:2181 --root /fe3c/cambria/config --apply",
        "                                          API keys that are not encrypted",
    )
)
@click.option(
    "--from-zookeeper",
    "servers",
    metavar="HOST:PORT[,…][/CHROOT]",
    help=f"The original's ZooKeeper.  [default: {SERVERS} of --properties]",
)
@click.option(
    "--root",
    metavar="PATH",
    help=f"Where the original keeps its configuration.  [default: {ROOT}]",
)
@click.option(
    "--properties",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The original's MsgRtrApi.properties: the key of its API keys, servers and root.",
)
@click.option(
    "--key",
    metavar="BASE64",
    help=f"{cipher.KEY}; others on this machine see it while the command runs.",
)
@click.option("--iv", metavar="BASE64", help=f"{cipher.IV}.")
@click.option("--apply", is_flag=True, help="Import; without it nothing is written.")
@click.option("--overwrite", is_flag=True, help="Import what is here already and differs, too.")
@as_json
@store
@zookeeper
def command(
    servers: str | None,
    root: str | None,
    properties: Path | None,
    apply: bool,
    overwrite: bool,
    **flags: Any,
) -> None:
    """Import API keys, topic owners, access lists and blacklist from an original's ZooKeeper.

    Prints what would be imported, what is here already and what differs, and what cannot be read;
    secrets are not printed. The original's tree is only read. Exit status 1 says that something
    could not be read or written.
    """
    key, iv, as_json = flags.pop("key"), flags.pop("iv"), flags.pop("as_json")
    given = {} if properties is None else cipher.properties(properties)
    settings = settings_for(flags.pop("config"), **flags)
    lock = _cipher(key or given.get(cipher.KEY, ""), iv or given.get(cipher.IV, ""))
    where = servers or given.get(SERVERS, "")
    if not where:
        raise SettingError(
            "which ZooKeeper? Name the original's with --from-zookeeper, or its --properties"
        )
    with opened(settings) as ours:
        original = _read(where, root or given.get(ROOT_PROPERTY) or ROOT, lock, ours)
        steps = compare(original.found, ours.node.registry, ours.timeout)
        absent, failures = list(_absent(steps, ours)), []
        if not as_json:
            click.echo("\n".join([*_lines(steps, original, overwrite), *absent]))
        if apply:
            failures = write(steps, ours.node.registry, overwrite, ours.timeout)
    if as_json:
        output.emit(_document(steps, original, [*map(str, failures)], absent) | {"applied": apply})
    else:
        click.echo(_sum(steps, original, apply, overwrite))
    for failure in failures:
        click.echo(f"not written: {failure}", err=True)
    raise SystemExit(1 if original.unreadable or failures else 0)


def _cipher(key: str, iv: str) -> cipher.Cipher | None:
    if bool(key) != bool(iv):
        raise SettingError(f"{cipher.KEY} and {cipher.IV} go together: give both, or none")
    return cipher.Cipher(key, iv) if key else None


def _read(servers: str, root: str, lock: cipher.Cipher | None, ours: CommandStore) -> Original:
    from router.coordination.zookeeper import tree  # noqa: PLC0415 - help needs no kazoo

    with tree.opened(servers, ours.timeout) as found:
        original = read(found, root, lock, ours.settings.topic)
        if not original.found and not original.unreadable and not found.children(root):
            raise SettingError(f"{servers}: there is nothing below {root}; name it with --root")
    return original


def _document(
    steps: list[MoveStep], original: Original, failures: list[str], warnings: list[str]
) -> dict[str, Any]:
    return {
        "records": [
            {
                "kind": step.found.kind,
                "name": step.found.name,
                "standing": step.standing.value,
                "says": step.found.description,
            }
            for step in steps
        ],
        "unreadable": list(original.unreadable),
        "warnings": warnings,
        "failures": failures,
    }


def _lines(steps: list[MoveStep], original: Original, overwrite: bool) -> Iterator[str]:
    """Yield a line for each record and for each node that cannot be read."""
    width = max((len(step.found.name) for step in steps), default=0)
    for step in steps:
        found, mark = step.found, step.standing.value
        if step.standing is Standing.DIFFERS:
            mark += ", is overwritten" if overwrite else ", stays as it is"
        yield f"{found.kind:<9}  {found.name:<{width}}  {mark:<23}  {found.description}".rstrip()
    for sentence in original.unreadable:
        yield f"cannot be read: {sentence}"


def _absent(steps: list[MoveStep], ours: CommandStore) -> Iterator[str]:
    """Yield a warning for each topic that would lose what is imported when it is created."""
    moved = {step.found.name for step in steps if step.found.kind == TOPIC_RECORDS}
    if not moved:
        return
    here = {str(info.topic) for info in ours.backend.list_topics(ours.timeout)}
    for name in sorted(moved - here):
        topic = ours.settings.shortest_name(ours.settings.topic(name))
        yield (
            f"{topic} does not exist here: make it with `router topics create {topic}`, for"
            " a topic that its first message makes takes over nobody's rights"
        )


def _sum(steps: list[MoveStep], original: Original, applied: bool, overwrite: bool) -> str:
    counts = Counter(step.standing for step in steps)
    parts = [f"{counts[standing]} {standing.value}" for standing in Standing]
    message = f"{', '.join(parts)}, {len(original.unreadable)} cannot be read."
    written = counts[Standing.NEW] + (counts[Standing.DIFFERS] if overwrite else 0)
    if applied:
        return f"{message} Imported."
    return f"{message} Nothing was written{': --apply does it' if written else ''}."
