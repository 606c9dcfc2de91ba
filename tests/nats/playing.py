"""Plays scenarios beside one another, and keeps what each of them showed."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.nats.scenarios import SCENARIOS
from tests.nats.users import SECONDS, connected
from tests.servers import golang, node
from tests.servers.golang import built
from tests.servers.maven import program
from tests.servers.node import installed

TOGETHER: Final = 12
"""Scenarios at a time: they wait for most of their time."""
PROGRAM_SECONDS: Final = 240.0
PYTHON: Final = "nats-py"
GO: Final = "nats.go"
JAVASCRIPT: Final = "nats.js"


@dataclass(frozen=True)
class Outcome:
    """What a scenario showed, or how it failed, and the replies of JetStream that it received."""

    shows: Any = None
    error: str = ""
    replies: list[dict[str, Any]] = field(default_factory=list)


class Shown:
    """What the scenarios show on one server: each client's are played when the first is read."""

    def __init__(self, server: str, url: str, cases: Iterable[tuple[str, str]]) -> None:
        self.server = server
        self._url = url
        self._cases = sorted(cases)
        self._outcomes: dict[str, dict[str, Outcome]] = {}

    def __getitem__(self, case: tuple[str, str]) -> Outcome:
        client, name = case
        if client not in self._outcomes:
            names = [name for one, name in self._cases if one == client]
            self._outcomes[client] = play(client, self._url, names)
        return self._outcomes[client].get(name, Outcome(error="it was not played"))


def play(client: str, url: str, names: list[str]) -> dict[str, Outcome]:
    """Play scenarios with a client."""
    if client == PYTHON:
        return asyncio.run(_play(url, names))
    if client == GO:
        command = [str(built(golang.NATS)), "run"]
    else:
        command = [str(program("node")), str(installed(node.NATS) / "scenarios.mjs")]
    return _play_program([*command, url, *names])


async def _play(url: str, names: list[str]) -> dict[str, Outcome]:
    slots = asyncio.Semaphore(TOGETHER)
    found = await asyncio.gather(*(_play_one(url, name, slots) for name in names))
    return dict(zip(names, found, strict=True))


async def _play_one(url: str, name: str, slots: asyncio.Semaphore) -> Outcome:
    async with slots:
        replies: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(SECONDS), connected(url) as user:
                replies = user.nc.replies
                shows = await SCENARIOS[name][0](user)
        except Exception as error:  # noqa: BLE001, it fails the test of its own name
            return Outcome(error=_located(error), replies=replies)
        return Outcome(json.loads(json.dumps(shows)), replies=replies)


def _located(error: BaseException) -> str:
    """Return an error with the line of a scenario that it came from."""
    place, at = "", error.__traceback__
    while at is not None:
        if "/scenarios/" in (file := at.tb_frame.f_code.co_filename):
            place = f"{file.rpartition('/')[2]}:{at.tb_lineno}"
        at = at.tb_next
    return f"{place} {type(error).__name__}: {error}"


def _play_program(command: list[str]) -> dict[str, Outcome]:
    """Play scenarios with a program, which prints a line of JSON for each."""
    done = subprocess.run(command, capture_output=True, timeout=PROGRAM_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        line["name"]: Outcome(line.get("shows"), line.get("error", ""), line.get("replies") or [])
        for line in lines
    }
