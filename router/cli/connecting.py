"""Connecting a command to what its options name, and what a shell completes from there.

A key press waits: names are asked for with a short deadline, and a failure is no names. Nothing is
started for them: topics of the data folder are known while its broker runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import get_completion_class

from router.cli import options, output
from router.cli.connection import StoreConnection
from router.errors import BackendUnavailableError
from router.process import node_socket

DEADLINE_SECONDS: Final = 1.0
MAX_NAMES: Final = 200
VARIABLE: Final = "_ROUTER_COMPLETE"


def connected(config: Path | None, **given: str | None) -> AbstractContextManager[StoreConnection]:
    """Connect to what the options of a command name: a server, or the store of the data folder."""
    return _connected(config, given, None)


def command_there(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `there`, a connection to what its options (`anywhere`, `--json`) name."""

    @options.as_json
    @options.anywhere
    @wraps(command)
    def run(*, config: Path | None, as_json: bool, **given: Any) -> None:
        own = {name: given.pop(name) for name in list(given) if name not in options.WHERE}
        with connected(config, **given) as there:
            command(there, as_json=as_json, **own)

    return run


@contextmanager
def _connected(
    config: Path | None, given: Mapping[str, str | None], deadline: float | None
) -> Iterator[StoreConnection]:
    """Connect; with a deadline only to what is there already and answers within so many seconds.

    Raises BackendUnavailableError if there is no broker on the data folder then.
    """
    context, flags = options.context_of(config, given)
    if context is not None:
        from router.cli.remote import RemoteConnection  # noqa: PLC0415 - each loads what it needs

        report = options.warn if deadline is None else _ignore
        with closing(RemoteConnection(context, report, deadline)) as remote:
            yield remote
        return
    if deadline is not None:
        flags["backend__timeout"] = f"{deadline}s"
    settings = options.settings_for(config, **flags)
    if deadline is not None and not node_socket.answers(Path(settings.text("data.dir"))):
        raise BackendUnavailableError("No broker runs on the data folder.")
    from router.cli import local, store  # noqa: PLC0415 - as above

    with store.opened(settings) as found:
        yield local.LocalConnection(found)


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of topics that begin so."""
    return _names(ctx, incomplete, lambda there: there.topic_names())


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the topic's groups that begin so."""
    topic = ctx.params.get("topic")
    if not topic:
        return []
    return _names(ctx, incomplete, lambda there: [one.name for one in there.groups(topic)])


def _names(
    ctx: click.Context, incomplete: str, ask: Callable[[StoreConnection], list[str]]
) -> list[str]:
    given: dict[str, Any] = {name: ctx.params.get(name) for name in options.WHERE}
    # A password that is not there cannot be asked for while a line is being typed.
    if given["user"] and options.PASSWORD not in os.environ:
        return []
    with (
        suppress(Exception),  # whatever is wrong, the line that is being typed stays as it is
        _connected(ctx.params.get("config"), given, DEADLINE_SECONDS) as there,
    ):
        return sorted(name for name in ask(there) if name.startswith(incomplete))[:MAX_NAMES]
    return []


def _ignore(sentence: str) -> None:
    """Report nothing: a line is being typed."""


@click.command(
    epilog=options.examples(
        'eval "$(router completion bash)"                  in ~/.bashrc',
        'eval "$(router completion zsh)"                   in ~/.zshrc',
        "router completion fish > ~/.config/fish/completions/router.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@options.as_json
def command(shell: str, as_json: bool) -> None:
    """Print what has SHELL complete `router`, names of topics, groups and contexts included."""
    completion = get_completion_class(shell)
    assert completion is not None
    script = completion(click.Command("router"), {}, "router", VARIABLE).source()
    output.respond(as_json, {"shell": shell, "script": script}, script)
