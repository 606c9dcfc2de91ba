"""`router dead-letters`: what waits in dead-letter topics; requeueing it, discarding it."""

from __future__ import annotations

from typing import Any, Final

import click

from router.cli import connecting, output
from router.cli.connection import StoreConnection
from router.cli.options import anywhere, as_json, examples
from router.errors import BadReadOptionError

SHOWN_CHARACTERS: Final = 60
"""Of a value in a table."""
TOPICS: Final = ("TOPIC", "WAITING", "STORED")
COLUMNS: Final = ("POSITION", "FROM", "REASON", "VALUE")

topic_argument = click.argument("topic", shell_complete=connecting.complete_topics)
position_option = click.option(
    "--position",
    metavar="POSITIONS",
    help="These letters, with commas between them, as `show` prints them.",
)
all_option = click.option("--all", "every", is_flag=True, help="All that wait now.")


@click.group(
    epilog=examples(
        "router dead-letters list",
        "router dead-letters show orders.dlq",
        "router dead-letters requeue orders.dlq --all",
        "router dead-letters discard orders.dlq --position 5:17:0,5:18:0",
    )
)
def command() -> None:
    """See what waits in dead-letter topics, publish it once more, discard it."""


@command.command("list", epilog=examples("router dead-letters list"))
@connecting.command_there
def list_topics(there: StoreConnection, *, as_json: bool) -> None:
    """Print the dead-letter topics, with the number of messages that wait and are stored."""
    topics = there.dead_letter_topics()
    rows = [(one["topic"], _count(one["waiting"]), _count(one["stored"])) for one in topics]
    output.respond(as_json, topics, *output.table(TOPICS, rows))


@command.command(
    epilog=examples(
        "router dead-letters show orders.dlq",
        "router dead-letters show orders.dlq --json       a letter a line",
    )
)
@topic_argument
@connecting.command_there
def show(there: StoreConnection, topic: str, *, as_json: bool) -> None:
    """Print the dead letters of TOPIC that wait: position, original topic, reason, value."""
    after = ""
    more = True
    while more:
        page = there.dead_letters(topic, after)
        for line in output.table(() if after else COLUMNS, list(map(_row, page["letters"]))):
            if not as_json:
                click.echo(line)
        for dead_letter in page["letters"] if as_json else ():
            output.emit(dead_letter)
        more, after = page["more"], page["behind"]


@command.command(
    epilog=examples(
        "router dead-letters requeue orders.dlq --all",
        "router dead-letters requeue orders.dlq --position 5:17:0",
    )
)
@topic_argument
@position_option
@all_option
@as_json
@anywhere
def requeue(topic: str, **given: Any) -> None:
    """Publish dead letters of TOPIC to the topics that they came from, with their keys and headers.

    A dead letter that was published does not wait any more. One that cannot be is printed with the
    reason, and stays. Interrupted and started again it goes on, and stores nothing twice.
    """
    _run("requeue", topic, given)


@command.command(
    epilog=examples(
        "router dead-letters discard orders.dlq --all",
        "router dead-letters discard orders.dlq --position 5:17:0,5:18:0",
    )
)
@topic_argument
@position_option
@all_option
@as_json
@anywhere
def discard(topic: str, **given: Any) -> None:
    """Have dead letters of TOPIC wait no more; they stay stored as long as the topic keeps them."""
    _run("discard", topic, given)


def _run(action: str, topic: str, given: dict[str, Any]) -> None:
    """Act on some dead letters at a time; exit with 1 if some are left."""
    position, every = given.pop("position"), given.pop("every")
    in_json, config = given.pop("as_json"), given.pop("config")
    if every == (position is not None):
        raise BadReadOptionError("give either --position or --all")
    fields = {"all": "true"} if position is None else {"position": position}
    done, refused = 0, dict[str, str]()
    with connecting.connected(config, **given) as there:
        while True:
            outcome = there.handle_dead_letters(topic, action, fields)
            done += outcome["done"]
            refused |= outcome["refused"]
            if not outcome["more"]:
                break
            click.echo(f"{done} letters, and more to come…", err=True)
            fields |= {"behind": outcome["behind"], "before": str(outcome["before"])}
    failure = outcome["failure"]
    if in_json:
        output.emit({"topic": topic, "done": done, "refused": refused, "failure": failure})
    else:
        for line in output.table((), list(refused.items())):
            click.echo(line, err=True)
        if failure:
            click.echo(f"Stopped: {failure}", err=True)
        left = f", {len(refused)} could not be" if refused else ""
        click.echo(f"{done} letters of {topic}: {action}{left}")
    raise SystemExit(1 if refused or failure else 0)


def _row(dead_letter: dict[str, Any]) -> tuple[str, ...]:
    message = dead_letter["message"]
    value = message.get("value") or message.get("value_base64") or ""
    reason = dead_letter["reason"] or "-"
    if dead_letter["obstacle"]:
        reason += f" (cannot be requeued: {dead_letter['obstacle']})"
    return dead_letter["id"], dead_letter["from"] or "-", reason, value[:SHOWN_CHARACTERS]


def _count(count: int | None) -> int | str:
    return "-" if count is None else count
