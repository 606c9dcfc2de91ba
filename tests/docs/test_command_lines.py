"""Every `router …` line of the documentation and of the examples in --help is one that there is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from router.cli import main
from tests.docs.console import ROOT, blocks
from tests.docs.test_complete import commands

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def lines_of_pages() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for language in ("sh", "console"):
            for block in blocks(page, language):
                for line in block.replace("\\\n", " ").splitlines():
                    yield page.name, line


def lines_of_help() -> Iterator[tuple[str, str]]:
    for name, command in commands(main, "router"):
        for line in (command.epilog or "").splitlines():
            yield f"{name} --help", re.split(r"\s{2,}(?=\S)", line.strip())[0]


def calls(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of router in a line of a shell's."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.commenters = "#"
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return  # a text in quotes goes on in the next line
    call: list[str] | None = None
    for word in [*words, ";"]:
        if call is None:
            call = [] if word == "router" else None
        elif set(word) <= set("|&;<>()"):
            yield call
            call = None
        else:
            call.append(word)


def parse(arguments: list[str]) -> None:
    """Parse arguments as the command does, without running it; raise click.UsageError."""
    group: click.Command = main
    context = click.Context(main, info_name="router")
    while isinstance(group, click.Group):
        if not arguments or arguments[0].startswith("-") or "…" in arguments[0]:
            return
        name, found, arguments = group.resolve_command(context, arguments)
        assert found is not None
        context, group = click.Context(found, context, name), found
    if not any("…" in word or word in {"...", "COMMAND"} for word in arguments):
        group.make_context(context.info_name, list(arguments), parent=context.parent)


@pytest.mark.parametrize("source", [lines_of_pages, lines_of_help])
def test_every_line_that_calls_router_is_understood(source: object) -> None:
    assert callable(source)
    done = 0
    for where, line in source():
        for arguments in calls(line):
            if arguments[:1] == ["COMMAND"]:
                continue
            try:
                parse(arguments)
            except click.exceptions.Exit:
                pass  # --help and --version
            except click.UsageError as error:
                pytest.fail(f"{where}: {line.strip()}: {error.format_message()}")
            done += 1
    assert done > 50
