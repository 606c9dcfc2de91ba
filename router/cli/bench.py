"""`router bench`: how fast a router publishes, is read, and hands messages on."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from router.cli import connecting, output
from router.cli.options import Decorator, anywhere, as_json, examples, several, warn
from router.errors import RouterError

if TYPE_CHECKING:
    from router.cli.connection import StoreConnection
    from router.cli.load import LoadOutcome, LoadPlan, LoadRun

MAX_SECONDS: Final = 600.0
MAX_MESSAGES: Final = 10_000_000
MAX_MESSAGE_BYTES: Final = 1_000_000
MAX_CLIENTS: Final = 64
MAX_BATCH_MESSAGES: Final = 5_000
MAX_MESSAGES_PER_SECOND: Final = 1_000_000.0
BAR_CHARACTERS: Final = 40


def _option(
    name: str, kind: click.ParamType[Any], default: Any, text: str, **more: Any
) -> Decorator:
    return click.option(name, type=kind, default=default, show_default=True, help=text, **more)


def _options(messages: int | None = None, batch: int = 100, rate: float = 0.0) -> Decorator:
    """Return what gives a command the options of a run, with its own defaults."""
    return several(
        as_json,
        anywhere,
        _option(
            "--duration",
            click.FloatRange(0, MAX_SECONDS, min_open=True),
            5.0,
            "Stop after this time.",
            metavar="SECONDS",
        ),
        _option("--messages", click.IntRange(1, MAX_MESSAGES), messages, "Stop after so many."),
        _option("--size", click.IntRange(1, MAX_MESSAGE_BYTES), 1_000, "Bytes of a message."),
        _option(
            "--clients",
            click.IntRange(1, MAX_CLIENTS),
            1,
            "Clients at the same time; the topic has as many partitions.",
        ),
        _option("--batch", click.IntRange(1, MAX_BATCH_MESSAGES), batch, "Messages of a request."),
        _option(
            "--rate",
            click.FloatRange(0, MAX_MESSAGES_PER_SECOND),
            rate,
            "Messages a second, all clients together; latency counts from when each is due. 0: as"
            " fast as it goes.",
        ),
    )


@click.group(
    epilog=examples(
        "router bench publish                                   on the data folder",
        "router bench publish --clients 4 --rate 2000 --context prod",
        "router bench subscribe --messages 50000",
        "router bench latency --rate 500 --duration 30 --json",
    )
)
def command() -> None:
    """Measure publishing, reading, and the time from one to the other.

    Each run makes a topic of its own, bench-…, and deletes it at the end, also after Ctrl-C. It
    publishes 4 GiB at most.
    """


@command.command(
    epilog=examples(
        "router bench publish --duration 10",
        "router bench publish --clients 4 --rate 2000 --size 200 --server http://127.0.0.1:3904",
    )
)
@_options()
def publish(as_json: bool, config: Path | None, **given: Any) -> None:
    """Publish for a while; the latency is that of a request, until it is on disk."""
    plan = _plan(given)
    with _topic(config, given, plan.clients) as (there, topic):
        outcome = _run(there, topic, plan).publish()
    _report("publish", plan, outcome, as_json)


@command.command(epilog=examples("router bench subscribe --messages 50000 --clients 2"))
@_options(messages=20_000)
def subscribe(as_json: bool, config: Path | None, **given: Any) -> None:
    """Publish messages, then have a group read and acknowledge them; the latency is a fetch's.

    --rate and --duration are those of publishing.
    """
    plan = _plan(given)
    with _topic(config, given, plan.clients) as (there, topic):
        published = _run(there, topic, plan).publish()
        limited = replace(plan, messages=max(1, published.messages))
        outcome = _run(there, topic, limited).subscribe()
    outcome.lost = published.messages - outcome.messages
    _report("subscribe", plan, outcome, as_json)


@command.command(epilog=examples("router bench latency --rate 500 --duration 30"))
@_options(rate=100.0, batch=1)
def latency(as_json: bool, config: Path | None, **given: Any) -> None:
    """Send messages one by one, and take the time from when each is due until a tail has it.

    --clients and --batch are 1 here.
    """
    plan = replace(_plan(given), clients=1, batch=1)
    with _topic(config, given, 1) as (there, topic):
        outcome = _run(there, topic, plan).latency()
    _report("latency", plan, outcome, as_json)


def _plan(given: dict[str, Any]) -> LoadPlan:
    """Return the plan of the options, which are taken away from the others."""
    from router.cli.load import LoadPlan  # noqa: PLC0415 - `--help` does without

    names = ("duration", "messages", "size", "clients", "batch", "rate")
    return LoadPlan(*(given.pop(name) for name in names))


def _run(there: StoreConnection, topic: str, plan: LoadPlan) -> LoadRun:
    from router.cli.load import LoadRun  # noqa: PLC0415 - as above

    return LoadRun(there, topic, plan)


@contextmanager
def _topic(
    config: Path | None, given: dict[str, Any], partitions: int
) -> Iterator[tuple[StoreConnection, str]]:
    """Make a topic, and delete it however the run ends."""
    topic = f"bench-{secrets.token_hex(6)}"
    with connecting.connected(config, **given) as there:
        there.create_topic(topic, 0 if partitions == 1 else partitions)
        try:
            yield there, topic
        finally:
            try:
                there.delete_topic(topic)
            except RouterError as error:
                warn(f"{error} The topic {topic} is still there.")


def _report(kind: str, plan: LoadPlan, outcome: LoadOutcome, as_json: bool) -> None:
    seconds = max(outcome.seconds, 1e-6)
    rate = outcome.messages / seconds
    if as_json:
        output.emit(
            {
                "bench": kind,
                "messages": outcome.messages,
                "requests": outcome.requests,
                "bytes": outcome.messages * plan.size,
                "seconds": round(seconds, 3),
                "messages_per_second": round(rate, 1),
                "lost": outcome.lost,
                "latency_ms": outcome.latency.as_json(),
            }
        )
    else:
        _print(kind, outcome, f"{rate:,.0f} messages/s, {rate * plan.size / 1e6:,.2f} MB/s")
    if outcome.lost > 0:
        raise RouterError(f"{outcome.lost} messages were stored and did not come in time.")


def _print(kind: str, outcome: LoadOutcome, rate: str) -> None:
    click.echo(f"{kind}: {outcome.messages:,} messages in {outcome.seconds:.1f} s: {rate}")
    summary = outcome.latency.summary()
    for line in output.table(
        ("latency", *summary),
        [("ms", *("-" if value is None else f"{value:.3f}" for value in summary.values()))],
    ):
        click.echo(line)
    rows = list(outcome.latency.doublings())
    most = max((count for _, count in rows), default=1)
    for line in output.table(
        ("below ms", "count", ""),
        [(f"{bound:g}", count, "#" * -(-count * BAR_CHARACTERS // most)) for bound, count in rows],
    ):
        click.echo(line)
