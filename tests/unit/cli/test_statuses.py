"""Every command has JSON for programs, and every exit status of the table is reached."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from router.cli import COMMANDS, main, status
from router.errors import by_code
from tests.docs.console import ROOT
from tests.ports import free_port
from tests.unit.cli.servers import answer, scripted
from tests.unit.cli.test_commands import backend, run

__all__ = ["backend"]

# They run until they are stopped, with log lines in JSON by log.format = json, or their input ends.
UNTIL_STOPPED = {
    *("serve", "broker", "demo", "pipeline run", "pipeline replay", "pipeline maintain"),
    "pipeline rebuild",
    "kafka-messages codec",
}


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No contexts but the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def leaves(group: click.Command, name: str = "") -> list[tuple[str, click.Command]]:
    """Return the commands that do something, with their names."""
    if not isinstance(group, click.Group):
        return [(name, group)]
    context = click.Context(group)
    found = []
    for below in group.list_commands(context):
        command = group.get_command(context, below)
        assert command is not None
        found += leaves(command, f"{name} {below}".strip())
    return found


def test_every_command_has_json_for_programs() -> None:
    found = {
        name: any("--json" in parameter.opts for parameter in command.params)
        for name, command in leaves(main)
    }
    assert {name.partition(" ")[0] for name in found} == set(COMMANDS)
    assert {name for name, has_json in found.items() if not has_json} == UNTIL_STOPPED


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    "line",
    [
        ("topics", "create", "orders"),
        ("topics", "list"),
        ("topics", "describe", "there"),
        ("topics", "delete", "there"),
        ("groups", "list", "there"),
        ("groups", "show", "there", "g"),
        ("groups", "reset", "there", "g", "--to", "latest"),
        ("groups", "reset", "there", "g", "--to", "latest", "--preview"),
        ("groups", "delete", "there", "g"),
        ("pub", "there"),
        ("sub", "there", "--from", "earliest", "--count", "1"),
        ("bench", "publish", "--messages", "1"),
        ("context", "add", "x", "--server", "http://x"),
        ("context", "list"),
        ("context", "use", "local"),
        ("context", "show"),
        ("completion", "bash"),
        ("user", "list", "--file", "absent"),
    ],
)
def test_json_is_one_document(line: tuple[str, ...]) -> None:
    run("pub", "there", given=b"x\n")
    run("sub", "there", "--group", "g", "--from", "earliest", "--count", "1")
    result = run(*line, "--json", given=b"y\n")
    assert result.exit_code == 0, result.output
    json.loads(result.stdout)


SERVER = "http://127.0.0.1"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (("topics", "list"), status.DONE),
        (("topics", "create", "there"), status.FAILED),
        (("topics", "create"), status.USAGE),
        (("sub", "there", "--server", SERVER, "--context", "x"), status.USAGE),
        (("pub", "there", "--format", "ndjson"), status.BAD_DATA),
        (("pub", "there", "--format", "json"), status.BAD_DATA),
        (("pub", "there", "--format", "cambria"), status.BAD_DATA),
        (("sub", "absent"), status.NOT_FOUND),
        (("groups", "delete", "there", "absent"), status.NOT_FOUND),
        (("sub", "there", "--count", "1", "--timeout", "0.05"), status.TRY_AGAIN),
        (("topics", "list", "--context", "absent"), status.BAD_SETTING),
        (("topics", "list", "--server", "no url"), status.BAD_SETTING),
    ],
)
@pytest.mark.usefixtures("backend")
def test_a_command_ends_with_the_status_of_its_end(line: tuple[str, ...], expected: int) -> None:
    run("topics", "create", "there")
    result = run(*line, given=b"{[\n")
    assert result.exit_code == expected, result.output
    assert "Traceback" not in result.output


def test_a_server_that_is_away_or_refuses_has_its_status() -> None:
    away = run("topics", "list", "--server", f"http://127.0.0.1:{free_port()}")
    assert away.exit_code == status.UNREACHABLE
    with scripted(answer(401, '{"message":"Who?"}')) as (url, _):
        assert run("topics", "list", "--server", url).exit_code == status.REFUSED
    with scripted(answer(429, '{"message":"Slowly."}', Retry_After="99")) as (url, _):
        assert run("topics", "list", "--server", url).exit_code == status.TRY_AGAIN


def test_every_failure_has_a_status_of_the_table() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([0-9, ]+) \| ", page, re.MULTILINE)
    told = {int(number) for row in rows for number in row.split(",")}
    values = {value for name, value in vars(status).items() if name.isupper() and name[0] != "_"}
    assert values <= told
    for cls in by_code().values():
        error = cls("x", stored=0) if cls.code == "partial-publish" else cls("x")  # type: ignore[call-arg] # its own
        assert status.status_of(error) in told


def test_help_says_what_each_command_does() -> None:
    output = run("--help").output
    assert all(f"  {sentence}\n" in output for sentence in COMMANDS.values())


def test_output_that_is_closed_ends_silently(tmp_path: Path) -> None:
    """As `router context list | true`: a real process, whose output is flushed at its exit."""
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-m", "router", "context", "list", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=os.environ | {"XDG_CONFIG_HOME": str(tmp_path)},
        timeout=30,
        check=False,
    )
    os.close(writer)
    assert (process.returncode, process.stderr) == (status.OUTPUT_CLOSED, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "line", "wanted"),
    [
        (">&-", "context list --json", status.DONE),
        ("2>&-", "topics list --server http://127.0.0.1:1 --user anna", status.BAD_SETTING),
        (">&- 2>&- <&-", "context list", status.DONE),
    ],
)
def test_standard_streams_may_be_closed(
    tmp_path: Path, closed: str, line: str, wanted: int
) -> None:
    """And no file that the command opens takes the place of one."""
    code = f"""
import os, sys
from router.cli import main
try:
    main({line.split()})
except SystemExit as end:
    sys.exit(end.code if os.open('.', os.O_RDONLY) > 2 else 99)
"""
    shell = f'exec "$0" -c "$1" {closed}'
    environ = os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}
    environ.pop("ROUTER_PASSWORD", None)
    done = subprocess.run(["sh", "-c", shell, sys.executable, code], env=environ, check=False)
    assert done.returncode == wanted


@pytest.mark.slow
@pytest.mark.parametrize("command", ["", "pub", "sub", "topics", "groups", "bench", "context"])
def test_help_loads_nothing_that_it_does_not_need(command: str) -> None:
    code = (
        "import sys; from router.cli import main;"
        f" main([*'{command}'.split(), '--help'], standalone_mode=False);"
        " heavy = {'urllib3', 'flask', 'gevent', 'google.protobuf', 'kafka', 'kazoo', 'orjson',"
        " 'structlog', 'uvloop', 'router.services'} & set(sys.modules);"
        " sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
