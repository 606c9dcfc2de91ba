"""`router streams` on a router elsewhere whose store has topics, and nothing else of streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.cli import status
from router.errors import (
    BadRequestError,
    ConflictError,
    NotSupportedError,
    OverloadedError,
    RouterError,
    TopicNotFoundError,
)
from router.services.jetstream import management
from tests.unit.cli.servers import live
from tests.unit.cli.test_commands import run
from tests.unit.web.applications import Site


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No contexts but the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ROUTER_CONTEXT", raising=False)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, str]]:
    """The options that name an application over the store in memory."""
    site = Site({})
    with live(site) as url:
        yield "--server", url
    site.close()


def test_streams_are_added_listed_shown_and_removed(server: tuple[str, str]) -> None:
    assert run("streams", "add", "a.b", *server).output == "Created a%2Eb\n"
    assert run("streams", "ls", *server).output.split()[:4] == ["a%2Eb", "a.b", "0", "0"]
    shown = run("streams", "info", "a%2Eb", *server).output.splitlines()
    assert shown[0].split() == ["config.name", "a%2Eb"]
    document = json.loads(run("streams", "info", "a.b", "--json", *server).output)
    assert document["config"]["name"] == "a%2Eb"
    assert run("streams", "rm", "a.b", *server).output == "Deleted a%2Eb\n"
    assert run("streams", "ls", "--json", *server).output == "[]\n"


def test_failures_are_sentences_with_their_status(server: tuple[str, str]) -> None:
    absent = run("streams", "info", "absent", *server)
    assert absent.exit_code == status.NOT_FOUND
    assert absent.stderr == "Error: stream not found (HTTP 404)\n"
    refused = run("streams", "purge", "absent", *server)
    assert refused.exit_code != status.DONE
    assert "has no purges" in refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "orders"),
        ("get", "orders", "0"),
        ("purge", "orders", "--keep", "x"),
        ("add", "orders", "--max-age", "soon"),
        ("add", "orders", "--max-bytes", "many"),
        ("add", "orders", "--retention", "ever"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_any_call(arguments: tuple[str, ...]) -> None:
    result = run("streams", *arguments, "--server", "http://127.0.0.1:1")
    assert result.exit_code in (status.USAGE, status.FAILED)
    assert "reached" not in result.stderr


def test_a_file_that_is_no_object_is_refused() -> None:
    for text in (b"x", b"[]"):
        result = run(
            "streams", "add", "orders", "--file", "-", "--server", "http://127.0.0.1:1", given=text
        )
        assert result.exit_code == status.BAD_SETTING


def test_names_of_streams_are_those_of_their_topics() -> None:
    assert management.stream_name("a.b") == management.stream_name("a%2Eb") == "a%2Eb"
    assert management.topic_of_stream("a%2Eb") == "a.b"
    assert management.topic_of_stream("a%252Eb") == "a%2Eb"
    assert management.topic_of_stream("a%2Eb-partition-12") == "a.b"


def test_lists_are_read_to_their_end() -> None:
    names = [f"s{number}" for number in range(7)]

    def call(subject: str, body: object) -> dict[str, object]:
        assert subject == "STREAM.LIST"
        assert isinstance(body, dict)
        offset = body["offset"]
        return {"streams": names[offset : offset + 3], "total": len(names), "offset": offset}

    assert list(management.streams(call)) == names  # type: ignore[comparison-overlap] # only names


@pytest.mark.parametrize(
    ("code", "number", "expected"),
    [
        (404, 10059, TopicNotFoundError),
        (400, 10065, ConflictError),
        (503, 10076, NotSupportedError),
        (503, 10077, OverloadedError),
        (500, 10052, BadRequestError),
    ],
)
def test_errors_of_the_api_are_the_routers_own(
    code: int, number: int, expected: type[RouterError]
) -> None:
    found = management.failure({"code": code, "err_code": number, "description": "x"})
    assert type(found) is expected
    assert str(found) == f"x ({number})"
