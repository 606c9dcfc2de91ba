"""`router streams`: topics as streams of JetStream, their messages and consumers.

A stream is written with the name of its topic, or as NATS clients write it, `%2E` for a dot.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import click

from router.cli import connecting, output
from router.cli.connection import StoreConnection
from router.cli.options import Decorator, examples, several
from router.errors import BadReadOptionError, SettingError
from router.settings.parsing import duration, size

STREAMS: Final = ("STREAM", "SUBJECTS", "MESSAGES", "BYTES", "FIRST", "LAST", "CONSUMERS")
CONSUMERS: Final = ("CONSUMER", "KIND", "DELIVERED", "ACKNOWLEDGED", "PENDING", "WAITING", "ACKS")
_SECOND_NS: Final = 1_000_000_000

stream_argument = click.argument(
    "stream", callback=lambda _ctx, _parameter, text: text.replace(".", "%2E")
)


def _parsed(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """Return what reads an option as a setting of this kind is read; -1 stands for no limit."""

    def read(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
        if text is None or text == "-1":
            return None if text is None else -1
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return read


def _nanoseconds(text: str) -> int:
    return round(duration(text) * _SECOND_NS)


def _switch(name: str, text: str) -> Decorator:
    return click.option(f"--{name}/--no-{name}", default=None, help=text)


configuring = several(
    click.option(
        "--subjects",
        metavar="SUBJECTS",
        callback=lambda _ctx, _parameter, text: text and text.split(","),
        help="Subjects that it stores, with commas between them; its name if left out.",
    ),
    click.option("--description", help="What it is for."),
    click.option(
        "--retention",
        type=click.Choice(["limits", "interest", "workqueue"]),
        help="When messages go, apart from limits.",
    ),
    click.option(
        "--discard",
        type=click.Choice(["old", "new"]),
        help="What goes when a limit is reached: the oldest messages, or new ones.",
    ),
    click.option("--max-msgs", type=int, help="Most messages; -1: no limit."),
    click.option("--max-bytes", callback=_parsed(size), help="Most bytes, as 10G."),
    click.option(
        "--max-age", callback=_parsed(_nanoseconds), help="Age of the oldest message, as 7d."
    ),
    click.option("--max-msgs-per-subject", type=int, help="Most messages of a subject."),
    click.option("--max-msg-size", callback=_parsed(size), help="Largest message, as 1M."),
    click.option("--max-consumers", type=int, help="Most consumers."),
    click.option(
        "--duplicate-window",
        callback=_parsed(_nanoseconds),
        help="How long the ids of messages are known, as 2m.",
    ),
    _switch("allow-direct", "Whether messages can be got directly."),
    _switch("allow-rollup-hdrs", "Whether a message may replace those before it."),
    _switch("deny-delete", "Whether deletions of single messages are refused, for good."),
    _switch("deny-purge", "Whether purges are refused, for good."),
    click.option(
        "--file",
        "source",
        type=click.File("rb"),
        help="A configuration as JSON (-: standard input), which options change.",
    ),
)


@click.group(
    epilog=examples(
        "router streams ls",
        "router streams add orders --subjects 'orders.*,returns' --max-age 7d",
        "router streams edit orders --max-msgs 1000000",
        "router streams get orders --last orders.new",
        "router streams consumers orders",
        "router streams purge orders --filter orders.test --context prod",
        "router streams rm orders",
    )
)
def command() -> None:
    """Manage streams of JetStream: topics, as NATS clients see them."""


@command.command("ls", epilog=examples("router streams ls", "router streams ls --subject a.b"))
@click.option("--subject", default="", help="Those alone that store this subject.")
@connecting.command_there
def list_streams(there: StoreConnection, subject: str, *, as_json: bool) -> None:
    """Print the streams with what they hold."""
    from router.services.jetstream import management  # noqa: PLC0415 - `--help` does without

    found = list(management.streams(there.jetstream, subject))
    header = STREAMS if output.for_people() else ()
    output.respond(as_json, found, *output.table(header, [_stream_row(one) for one in found]))


@command.command(epilog=examples("router streams info orders", "router streams info orders --json"))
@stream_argument
@connecting.command_there
def info(there: StoreConnection, stream: str, *, as_json: bool) -> None:
    """Print the configuration of STREAM and what it holds."""
    found = there.jetstream(f"STREAM.INFO.{stream}", {})
    output.respond(
        as_json, found, *_table({name: found[name] for name in ("config", "state", "created")})
    )


@command.command(
    epilog=examples(
        "router streams add orders",
        "router streams add orders --subjects 'orders.*' --retention workqueue",
        "router streams add orders --file - < orders.json",
    )
)
@stream_argument
@configuring
@connecting.command_there
def add(there: StoreConnection, stream: str, *, as_json: bool, **given: Any) -> None:
    """Create STREAM; a topic of this name becomes the stream."""
    config = {**_given(given), "name": stream}
    found = there.jetstream(f"STREAM.CREATE.{stream}", config)
    output.report(as_json, "Created", "stream", found["config"]["name"])


@command.command(
    epilog=examples(
        "router streams edit orders --max-age 30d",
        "router streams edit orders --subjects 'orders.*,returns'",
    )
)
@stream_argument
@configuring
@connecting.command_there
def edit(there: StoreConnection, stream: str, *, as_json: bool, **given: Any) -> None:
    """Change the configuration of STREAM; what no option names stays."""
    stored = there.jetstream(f"STREAM.INFO.{stream}", {})["config"]
    config = {**stored, **_given(given), "name": stream}
    there.jetstream(f"STREAM.UPDATE.{stream}", config)
    output.report(as_json, "Changed", "stream", stream)


@command.command(
    epilog=examples(
        "router streams purge orders",
        "router streams purge orders --filter orders.test --keep 10",
        "router streams purge orders --seq 5000            the messages before it",
    )
)
@stream_argument
@click.option("--filter", "subject", help="Messages of these subjects alone.")
@click.option("--seq", type=click.IntRange(1), help="Messages before this sequence alone.")
@click.option("--keep", type=click.IntRange(1), help="All but so many of the last ones.")
@connecting.command_there
def purge(
    there: StoreConnection,
    stream: str,
    subject: str | None,
    seq: int | None,
    keep: int | None,
    *,
    as_json: bool,
) -> None:
    """Delete messages of STREAM: all of them, unless options say which."""
    limits = {"filter": subject, "seq": seq, "keep": keep}
    body = {name: value for name, value in limits.items() if value is not None}
    found = there.jetstream(f"STREAM.PURGE.{stream}", body)
    output.respond(
        as_json,
        {"stream": stream, "purged": found["purged"]},
        f"Deleted {found['purged']} messages of {stream}",
    )


@command.command("rm", epilog=examples("router streams rm orders"))
@stream_argument
@connecting.command_there
def remove(there: StoreConnection, stream: str, *, as_json: bool) -> None:
    """Delete STREAM: the topic with its messages, consumers and groups."""
    there.jetstream(f"STREAM.DELETE.{stream}", {})
    output.report(as_json, "Deleted", "stream", stream)


@command.command(
    epilog=examples(
        "router streams get orders 17",
        "router streams get orders --last orders.new",
        "router streams get orders 17 --next 'orders.*'    the first one from 17 on",
    )
)
@stream_argument
@click.argument("sequence", type=click.IntRange(1), required=False)
@click.option("--last", metavar="SUBJECT", help="The last message of a subject.")
@click.option("--next", "following", metavar="SUBJECT", help="The next message of subjects.")
@connecting.command_there
def get(
    there: StoreConnection,
    stream: str,
    sequence: int | None,
    last: str | None,
    following: str | None,
    *,
    as_json: bool,
) -> None:
    """Print a message of STREAM: by its sequence, or the last or next one of a subject."""
    if sequence is None and last is None and following is None:
        raise BadReadOptionError("give a sequence, --last or --next")
    place = {"seq": sequence, "last_by_subj": last, "next_by_subj": following}
    body = {name: value for name, value in place.items() if value is not None}
    message = there.jetstream(f"STREAM.MSG.GET.{stream}", body)["message"]
    output.respond(as_json, message, *_message(message))


@command.command(
    epilog=examples("router streams consumers orders", "router streams consumers orders worker")
)
@stream_argument
@click.argument("consumer", required=False)
@connecting.command_there
def consumers(there: StoreConnection, stream: str, consumer: str | None, *, as_json: bool) -> None:
    """Print the consumers of STREAM and where they stand, or all of one."""
    from router.services.jetstream import management  # noqa: PLC0415 - `--help` does without

    if consumer is not None:
        found = there.jetstream(f"CONSUMER.INFO.{stream}.{consumer}", {})
        output.respond(as_json, found, *_table(found))
        return
    listed = list(management.consumers(there.jetstream, stream))
    rows = [_consumer_row(one) for one in listed]
    output.respond(as_json, listed, *output.table(CONSUMERS if rows else (), rows))


def _given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a configuration that a file and options give."""
    options = dict(given)
    source = options.pop("source")
    config = {}
    if source is not None:
        try:
            config = json.load(source)
        except ValueError as error:
            raise SettingError(f"--file: {error}") from error
        if not isinstance(config, dict):
            raise SettingError("--file: an object is expected")
    return config | {name: value for name, value in options.items() if value is not None}


def _stream_row(one: Mapping[str, Any]) -> tuple[object, ...]:
    config, state = one["config"], one["state"]
    counts = ("messages", "bytes", "first_seq", "last_seq", "consumer_count")
    subjects = ",".join(config.get("subjects") or ())
    return config["name"], subjects, *(state[name] for name in counts)


def _consumer_row(one: Mapping[str, Any]) -> tuple[object, ...]:
    kind = "push" if one["config"].get("deliver_subject") else "pull"
    places = one["delivered"]["stream_seq"], one["ack_floor"]["stream_seq"]
    counts = one["num_pending"], one["num_waiting"], one["num_ack_pending"]
    return one["name"], kind, *places, *counts


def _table(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines of names and values; the name of a member of a member has a dot."""
    rows = [(name, _cell(value)) for name, value in _flat(found) if name != "type"]
    yield from output.table((), rows)


def _flat(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _message(message: Mapping[str, Any]) -> Iterator[str]:
    for name in ("subject", "seq", "time"):
        yield from output.table((), [(f"{name}:", str(message[name]))])
    headers = base64.b64decode(message.get("hdrs", "")).decode(errors="replace")
    yield from output.table((), [(line,) for line in headers.split("\r\n")[1:] if line])
    yield ""
    payload = base64.b64decode(message.get("data", "")).decode(errors="replace")
    yield from output.table((), [(line,) for line in payload.splitlines()])
