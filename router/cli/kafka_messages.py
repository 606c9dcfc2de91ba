"""`router kafka-messages`: Kafka's message definitions compiled, shown, compared, put to use."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from router.cli import status
from router.cli.options import as_json, examples
from router.kafka.definitions import definition_texts, folder_texts
from router.wire.kafka.classes import RUNTIME
from router.wire.kafka.compatibility import Incompatibility, compare, compare_sets
from router.wire.kafka.definitions import DefinitionError, MessageDefinition, attribute
from router.wire.kafka.drawing import layout
from router.wire.kafka.engine import RUNTIME_MODULES, Messages, message_source
from router.wire.kafka.errors import KafkaMessageError
from router.wire.kafka.parsing import check_set, parse

FOLDER = click.Path(path_type=Path, file_okay=False)
PATH = click.Path(path_type=Path)
ENCODE, DECODE = ("encode", "write"), ("decode", "read")

definitions_option = click.option(
    "--definitions",
    type=FOLDER,
    metavar="DIR",
    help="The folder of definitions.  [default: those that kafka-python ships]",
)


@click.group(
    epilog=examples(
        "router kafka-messages show MetadataRequest 12",
        "router kafka-messages decode ResponseHeader 0 00000007",
        "router kafka-messages check definitions/4.1.0 definitions/4.4.0",
        "router kafka-messages compile definitions --out messages",
    )
)
def command() -> None:
    """Compile, inspect and compare Kafka's message definitions."""


@command.command(
    "compile", epilog=examples("router kafka-messages compile definitions --out messages")
)
@click.argument("folder", type=FOLDER)
@click.option(
    "--out", type=FOLDER, required=True, metavar="PACKAGE", help="The folder of the package."
)
@as_json
def compile_(folder: Path, out: Path, as_json: bool) -> None:
    """Write a package with a module for each definition of FOLDER; it needs nothing else."""
    texts = _texts(folder)
    _messages(texts)
    out.mkdir(parents=True, exist_ok=True)
    imports = []
    for file, text in texts.items():
        name = parse(text, file).name
        module = attribute(name)
        (out / f"{module}.py").write_text(message_source(text, file, "._runtime"), "utf-8")
        imports.append((module, name))
    _write_runtime(out / "_runtime")
    lines = ['"""Messages of Kafka, generated from their definitions; do not edit."""', ""]
    lines.append("from ._runtime.errors import KafkaMessageError as KafkaMessageError")
    lines += [f"from .{module} import {name} as {name}" for module, name in sorted(imports)]
    (out / "__init__.py").write_text("\n".join(lines) + "\n", "utf-8")
    if as_json:
        click.echo(json.dumps({"package": str(out), "messages": [name for _, name in imports]}))
    else:
        click.echo(f"{len(texts)} messages in {out}")


def _write_runtime(folder: Path) -> None:
    """Write the modules that messages import, as a package that imports itself alone."""
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text('"""What generated messages are made of."""\n', "utf-8")
    for module in RUNTIME_MODULES:
        text = files(RUNTIME).joinpath(f"{module}.py").read_text("utf-8")
        text = text.replace(f"from {RUNTIME}.", "from .").replace(f"from {RUNTIME} ", "from . ")
        (folder / f"{module}.py").write_text(text, "utf-8")


@command.command("show", epilog=examples("router kafka-messages show FetchRequest 12"))
@click.argument("name")
@click.argument("version", type=int)
@definitions_option
@as_json
def show(name: str, version: int, definitions: Path | None, as_json: bool) -> None:
    """Draw the layout of a version on the wire."""
    definition = _definition(_messages(_texts(definitions)), name)
    if version not in definition.valid:
        raise _failed(f"{name} has the versions {definition.valid}")
    drawn = layout(definition, version)
    click.echo(json.dumps({"layout": drawn.splitlines()}) if as_json else drawn)


@command.command(
    "decode", epilog=examples("router kafka-messages decode ResponseHeader 0 00000007")
)
@click.argument("name", metavar="API")
@click.argument("version", type=int)
@click.argument("data", metavar="HEX")
@definitions_option
@as_json
def decode(name: str, version: int, data: str, definitions: Path | None, as_json: bool) -> None:
    """Print the message of bytes in hex, as JSON; API is the name of a message."""
    messages = _messages(_texts(definitions))
    _definition(messages, name)
    try:
        found = _decoded(messages, name, version, data)
    except (KafkaMessageError, ValueError) as error:
        raise _failed(str(error)) from None
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(json.dumps(found["json"], indent=2, ensure_ascii=False))
    if "rest" in found:
        click.echo(f"bytes after the message: {found['rest']}", err=True)


@command.command("check", epilog=examples("router kafka-messages check old/ new/ --json"))
@click.argument("old", type=PATH)
@click.argument("new", type=PATH)
@as_json
def check(old: Path, new: Path, as_json: bool) -> None:
    """Tell whether peers that use NEW understand peers that use OLD, two files or two folders.

    The exit status is 0 if they are compatible and 1 if they are not.
    """
    for path in (old, new):
        if not path.exists():
            raise click.UsageError(f"{path} is neither a file nor a folder.")
    if old.is_dir() != new.is_dir():
        raise click.UsageError("OLD and NEW are two files or two folders.")
    findings = _compared(old, new)
    verdict = "incompatible" if findings else "compatible"
    if as_json:
        kinds = sorted({one.kind for one in findings})
        shown = [one.to_json() for one in findings]
        click.echo(json.dumps({"verdict": verdict, "kinds": kinds, "findings": shown}))
    else:
        for one in findings:
            click.echo(str(one))
        click.echo(verdict)
    sys.exit(status.FAILED if findings else status.DONE)


@command.command("codec", epilog=examples("router kafka-messages codec --definitions DIR < lines"))
@definitions_option
def codec(definitions: Path | None) -> None:
    """Answer each line of standard input, a JSON object, with a line.

    {"op": "encode", "name": N, "version": V, "json": J} is answered with {"hex": H}, and
    {"op": "decode", "name": N, "version": V, "hex": H} with {"json": J}; a failure is {"error": E}.
    JSON is in the form of Kafka's own converters.
    """
    messages = _messages(_texts(definitions))
    for line in sys.stdin:
        if line.strip():
            click.echo(json.dumps(_answer(messages, line)))
            sys.stdout.flush()


def _answer(messages: Messages, line: str) -> dict[str, Any]:
    try:
        given = json.loads(line)
        return _operation(messages, given if isinstance(given, dict) else {})
    except (KafkaMessageError, DefinitionError, ValueError, RecursionError) as error:
        return {"error": str(error)}


def _operation(messages: Messages, given: Mapping[str, Any]) -> dict[str, Any]:
    name, version, op = given.get("name"), given.get("version"), given.get("op")
    if name not in messages.names:
        raise ValueError(f"there is no message {name}")
    if not isinstance(version, int) or isinstance(version, bool):
        raise ValueError("version is a number")  # noqa: TRY004 an answer, no fault of ours
    if op in ENCODE and "json" in given:
        message = messages.message(name).from_json(given["json"], version)
        return {"hex": message.write(version).hex()}
    if op in DECODE and isinstance(given.get("hex"), str):
        return _decoded(messages, name, version, given["hex"])
    raise ValueError("op is encode with json, or decode with hex")


def _decoded(messages: Messages, name: str, version: int, data: str) -> dict[str, Any]:
    content = bytes.fromhex(data)
    message, end = messages.message(name).read_from(content, version)
    found: dict[str, Any] = {"json": message.to_json(version)}
    if end < len(content):
        found["rest"] = content[end:].hex()
    return found


def _compared(old: Path, new: Path) -> list[Incompatibility]:
    try:
        if old.is_dir():
            released = _parsed(folder_texts(old), released=True)
            return compare_sets(released, _parsed(folder_texts(new)))
        first = parse(old.read_text("utf-8"), str(old), released=True)
        return compare(first, parse(new.read_text("utf-8"), str(new)))
    except (DefinitionError, OSError, UnicodeDecodeError) as error:
        raise _failed(str(error)) from None


def _parsed(texts: Mapping[str, str], *, released: bool = False) -> dict[str, MessageDefinition]:
    """Return definitions by name; name every file that cannot be read."""
    found: list[MessageDefinition] = []
    failures: list[str] = []
    for file, text in texts.items():
        try:
            found.append(parse(text, file, released=released))
        except DefinitionError as error:
            failures.append(str(error))
    if failures:
        raise _failed("\n".join(failures))
    check_set(found)
    return {one.name: one for one in found}


def _texts(folder: Path | None) -> dict[str, str]:
    try:
        found = definition_texts() if folder is None else folder_texts(folder)
    except (OSError, UnicodeDecodeError) as error:
        raise _failed(str(error)) from None
    if not found:
        raise _failed(f"{folder} holds no definitions")
    return found


def _messages(texts: Mapping[str, str]) -> Messages:
    try:
        return Messages(texts)
    except DefinitionError as error:
        raise _failed(str(error)) from None


def _definition(messages: Messages, name: str) -> MessageDefinition:
    try:
        return messages.definition(name)
    except KeyError:
        raise _failed(f"there is no message {name}") from None


class _BadDataError(click.ClickException):
    exit_code = status.BAD_DATA


def _failed(sentence: str) -> click.ClickException:
    return _BadDataError(sentence)
