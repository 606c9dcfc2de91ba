"""The checks of `router check` on a router elsewhere: it answers, is ready, and knows the user."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

from router.cli.contexts import Context
from router.cli.http_client import Answer, HttpClient, Request
from router.cli.preflight import Outcome
from router.cli.status import status_of
from router.errors import RouterError

CHECK_SECONDS: Final = 10.0
"""Time that the server has for each answer."""


def outcomes(context: Context) -> Iterator[Outcome]:
    """Yield what came of each check; those behind a server that does not answer are left out."""
    with closing(HttpClient(context, deadline=CHECK_SECONDS)) as client:
        began = time.monotonic()
        found, answered = _tried(client, "/health", lambda _: "HTTP is answered")
        took = round((time.monotonic() - began) * 1000)
        yield Outcome(f"{found.sentence} ({context.server}, {took} ms)", found.status)
        if not answered:
            return
        for path, tell in (
            ("/ready", lambda _: "publishes and polls are served"),
            ("/topics", lambda answer: _known(context, answer)),
        ):
            yield _tried(client, path, tell)[0]


def _tried(client: HttpClient, path: str, tell: Callable[[Answer], str]) -> tuple[Outcome, bool]:
    try:
        return Outcome(tell(client.ask(Request("GET", path)))), True
    except RouterError as error:
        return Outcome(f"{path}: {error}", status_of(error)), False


def _known(context: Context, answer: Answer) -> str:
    who = context.user or ("the token" if context.token or context.token_file else "anonymous")
    return f"as {who}: {len(answer.json()['topics'])} topics can be seen"
