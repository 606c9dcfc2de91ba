"""What a shell completes for arguments: names of contexts, topics and groups.

A key press waits: names are asked for with a short deadline, and a failure is no names. Nothing is
started for them: topics of the data folder are known while its broker runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from router.cli import contexts
from router.errors import RouterError

if TYPE_CHECKING:
    import click

    from router.cli.connection import Connection

DEADLINE_SECONDS: Final = 1.0
MAX_NAMES: Final = 200


def contexts_of(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of contexts that begin so."""
    del ctx, param
    with suppress(RouterError):
        known = contexts.load(contexts.path(os.environ)).known
        return _beginning([contexts.LOCAL, *known], incomplete)
    return []


def topics_of(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of topics that begin so."""
    del param
    return _beginning(_asked(ctx, lambda there: there.topic_names()), incomplete)


def groups_of(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the topic's groups that begin so."""
    del param
    topic = ctx.params.get("topic")
    if not topic:
        return []
    found = _asked(ctx, lambda there: [group.name for group in there.groups(topic)])
    return _beginning(found, incomplete)


def _asked(ctx: click.Context, ask: Callable[[Connection], list[str]]) -> list[str]:
    from router.cli import connection, options  # noqa: PLC0415 - loaded where they are used alone

    given: dict[str, Any] = {
        name: ctx.params.get(name)
        for name in ("context", "server", "user", "token_file", "ca", "data__dir", "backend__url")
    }
    config: Path | None = ctx.params.get("config")
    # A password that is not there cannot be asked for while a line is being typed.
    if given["user"] and options.PASSWORD not in os.environ:
        return []
    with (
        suppress(Exception),  # whatever is wrong, the line that is being typed stays as it is
        connection.connected_soon(config, given, DEADLINE_SECONDS) as there,
    ):
        return ask(there)
    return []


def _beginning(names: list[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))[:MAX_NAMES]
