"""`router zk`: which node holds which partition of which group; and taking them away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.cli import output
from router.cli.options import as_json, config, examples, required, settings_for, zookeeper
from router.model import TopicName
from router.settings import Settings

if TYPE_CHECKING:
    from router.coordination.zookeeper.inspection import GroupView


@click.group(
    epilog=examples(
        "router zk show --zookeeper zk1:2181,zk2:2181/router",
        "router zk show --json                        for programs",
        "router zk release orders billing             all partitions of the group",
        "router zk release orders billing 3           partition 3 alone",
    )
)
def command() -> None:
    """Look at the leases that the nodes share through ZooKeeper."""


@command.command(
    epilog=examples(
        "router zk show --zookeeper zk1:2181,zk2:2181/router",
        "router zk show --topic orders",
        "router zk show --json --config /etc/router/router.cfg",
    )
)
@click.option("--topic", help="This topic alone.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array, for programs.")
@config
@zookeeper
def show(topic: str | None, as_json: bool, config: Path | None, **flags: str | None) -> None:
    """Print which node holds each partition, who waits for it, and the live consumer ids."""
    from router.coordination.zookeeper import inspection  # noqa: PLC0415 - help needs no kazoo

    settings = settings_for(config, **flags)
    views = inspection.show(*_where(settings), settings.seconds("backend.timeout"))
    if topic is not None:
        name = str(settings.topic(topic))
        views = [view for view in views if view.topic == name]
    if as_json:
        click.echo(json.dumps([asdict(view) for view in views], indent=2, ensure_ascii=False))
        return
    click.echo("\n".join(listed(views, settings)) or "No node holds or waits for anything.")


@command.command(
    epilog=examples(
        "router zk release orders billing --zookeeper zk1:2181/router",
        "router zk release orders billing 3",
    )
)
@click.argument("topic")
@click.argument("group")
@click.argument("partition", type=click.IntRange(0), required=False)
@as_json
@config
@zookeeper
def release(topic: str, group: str, partition: int | None, as_json: bool, **given: Any) -> None:
    """Take the partitions of a group from the nodes that hold them.

    No message is lost: a node whose lease is taken acknowledges nothing any more, and the next one
    in the queue, perhaps the same, delivers again what was not acknowledged. It should not be
    needed: a node that died loses its leases by itself, after zookeeper.session.
    """
    from router.coordination.zookeeper import inspection  # noqa: PLC0415 - the same

    settings = settings_for(given.pop("config"), **given)
    name, timeout = str(settings.topic(topic)), settings.seconds("backend.timeout")
    taken = inspection.release(*_where(settings), name, group, partition, timeout)
    sentence = f"Took {taken} leases of {topic}, group {group}, from their holders"
    output.respond(as_json, {"topic": topic, "group": group, "taken": taken}, sentence)


def listed(views: list[GroupView], settings: Settings) -> Iterator[str]:
    """Yield the lines of a table: a group, its partitions, its consumer ids."""
    for view in views:
        yield f"{settings.shortest_name(TopicName.parse(view.topic))}, group {view.group}"
        for part in view.partitions:
            where = "not partitioned" if part.partition < 0 else f"partition {part.partition}"
            waiting = f"; waiting: {', '.join(part.waiting)}" if part.waiting else ""
            yield f"  {where:<15}  {part.holder or 'nobody'}{waiting}"
        for consumer, nodes in sorted(view.ids.items()):
            yield f"  consumer {consumer} is live on {', '.join(nodes)}"


def _where(settings: Settings) -> tuple[str, str]:
    servers = required(settings, "zookeeper.servers", "--zookeeper", "ZooKeeper")
    return servers, settings.text("zookeeper.digest")
