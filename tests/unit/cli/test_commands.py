"""Commands on the store in memory: what they print, and how they fail."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from router.backends import Backend, Reader, opening
from router.backends.memory import MemoryBackend, MemoryNode
from router.cli import formats, local, main, pub, status
from router.errors import BackendUnavailableError
from router.model import Stored, TopicInfo, TopicName
from router.node import Node
from router.process.build import VERSION
from router.settings import Settings

if TYPE_CHECKING:
    from typing_extensions import Buffer


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> MemoryBackend:
    """A store in memory that all commands of a test share, as they share a broker."""
    made = MemoryBackend(auto_create=True, auto_partitions=0, wall_ms=lambda: 1)
    node = MemoryNode(idle=5.0, empty_polls_per_minute=0)

    @contextmanager
    def opened(_settings: Settings) -> Iterator[tuple[Node, Backend]]:
        yield node, made

    monkeypatch.setattr(opening, "opened", opened)
    return made


def run(*arguments: str, given: bytes = b"") -> Result:
    return CliRunner().invoke(main, arguments, input=given)


@pytest.mark.usefixtures("backend")
def test_topics_list_shows_what_create_made() -> None:
    assert run("topics", "create", "orders", "--partitions", "3").exit_code == 0
    assert run("topics", "create", "persistent://other/space/x").exit_code == 0
    listed = run("topics", "list").output.splitlines()
    assert [line.split() for line in listed] == [
        ["persistent://other/space/x", "0"],
        ["orders", "3"],
    ]


def test_topics_list_shows_and_marks_internal_topics_if_requested(backend: MemoryBackend) -> None:
    run("topics", "create", "orders")
    backend.create_topic(TopicInfo(TopicName.parse("__own"), 3, internal=True), 1)
    assert run("topics", "list").output == "orders  0\n"
    listed = run("topics", "list", "--internal").output.splitlines()
    assert [line.split() for line in listed] == [["__own", "3", "internal"], ["orders", "0"]]


@pytest.mark.usefixtures("backend")
def test_topics_create_fails_when_the_topic_exists() -> None:
    run("topics", "create", "orders")
    result = run("topics", "create", "orders")
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")


@pytest.mark.usefixtures("backend")
def test_topics_delete_takes_the_topic_away() -> None:
    run("topics", "create", "orders")
    assert run("topics", "delete", "orders").exit_code == 0
    assert run("topics", "list").output == ""
    assert run("topics", "delete", "orders").exit_code == status.NOT_FOUND


@pytest.mark.usefixtures("backend")
def test_topics_describe_counts_messages_and_groups() -> None:
    run("topics", "create", "orders", "--partitions", "2")
    run("pub", "orders", "--key", "k", given=b"a\nb\n")
    run("sub", "orders", "--group", "g", "--from", "earliest", "--count", "1")
    output = run("topics", "describe", "orders").output
    assert "partitions: 2" in output
    assert "2 messages" in output
    assert "group g" in output
    assert "1 messages wait" in output


def test_topics_refuse_a_bad_name() -> None:
    result = run("topics", "create", "a b", "--backend", "memory")
    assert result.exit_code == 1
    assert "topic name" in result.output


def test_topics_refuse_a_backend_that_is_none() -> None:
    result = run("topics", "list", "--backend", "carrier-pigeon://home")
    assert result.exit_code == 78
    assert "carrier-pigeon" in result.output


@pytest.mark.usefixtures("backend")
def test_sub_prints_what_pub_published() -> None:
    published = run("pub", "greetings", given=b"hello\n\nworld\r\n\xff")
    assert "Published 3 messages to greetings" in published.output
    result = run("sub", "greetings", "--from", "earliest", "--count", "3")
    assert result.exit_code == 0
    assert result.stdout_bytes == b"hello\nworld\n\xff\n"


@pytest.mark.usefixtures("backend")
def test_sub_prints_keys_when_asked() -> None:
    run("pub", "greetings", "--key", "anna", given=b"hello")
    run("pub", "greetings", given=b"nobody")
    result = run("sub", "greetings", "--from", "earliest", "--count", "2", "--keys")
    assert result.stdout_bytes == b"anna\thello\n\tnobody\n"


@pytest.mark.usefixtures("backend")
def test_sub_goes_on_where_the_group_left_off() -> None:
    run("pub", "greetings", given=b"a\nb\nc\n")
    read = ["sub", "greetings", "--group", "g", "--from", "earliest", "--count"]
    assert run(*read, "1").output == "a\n"
    assert run(*read, "2").output == "b\nc\n"


def test_sub_goes_on_when_the_broker_comes_back(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reader of the store breaks after it gave a message."""
    monkeypatch.setattr(local, "POLL_SECONDS", 0.01)
    for line in (b"a", b"b", b"c"):
        run("pub", "greetings", given=line)
    opened = backend.read

    def read(*arguments: Any) -> Reader:
        reader, given = opened(*arguments), list[int]()

        class Breaking:
            def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
                if given:
                    raise BackendUnavailableError("away")
                found = reader.receive(min(limit, 2), max_bytes, timeout)
                given.extend(range(len(found)))
                return found

            def close(self) -> None:
                reader.close()

        return Breaking()

    monkeypatch.setattr(backend, "read", read)
    assert run("sub", "greetings", "--from", "earliest", "--count", "3").output == "a\nb\nc\n"


@pytest.mark.usefixtures("backend")
def test_a_key_may_have_any_bytes_and_a_header_is_text() -> None:
    run("pub", "greetings", "--key", "\udcff", given=b"x")
    read = ("sub", "greetings", "--from", "earliest", "--count", "1", "--keys")
    assert run(*read).stdout_bytes == b"\xff\tx\n"
    for header in ("a", "=b", "a=\udcff"):
        assert run("pub", "greetings", "-H", header, given=b"x").exit_code == 2


@pytest.mark.usefixtures("backend")
def test_sub_leaves_no_group_behind_that_it_made_itself() -> None:
    run("pub", "greetings", given=b"a\nb\n")
    run("sub", "greetings", "--from", "earliest", "--count", "1")
    run("sub", "greetings", "--group", "mine", "--from", "earliest", "--count", "1")
    output = run("topics", "describe", "greetings").output
    assert "group mine" in output
    assert "group sub-" not in output


@pytest.mark.usefixtures("backend")
def test_sub_fails_when_there_is_no_topic() -> None:
    result = run("sub", "absent")
    assert result.exit_code == status.NOT_FOUND
    assert result.output == "Error: No such topic exists: [absent]\n"


def test_sub_acknowledges_nothing_that_was_not_printed(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    del backend
    run("pub", "greetings", given=b"hello\n")
    read = ["sub", "greetings", "--group", "g", "--from", "earliest", "--count", "1"]

    class Full(io.RawIOBase):
        broken = True

        def writable(self) -> bool:
            return True

        def write(self, data: Buffer, /) -> int:
            if self.broken:
                raise BrokenPipeError
            return memoryview(data).nbytes

    full = Full()
    with monkeypatch.context() as patch, io.TextIOWrapper(io.BufferedWriter(full)) as printed:
        patch.setattr(sys, "stdout", printed)
        with pytest.raises((BrokenPipeError, SystemExit)):
            main(read, standalone_mode=True)
        patch.undo()
        full.broken = False  # what is still in the buffer goes out when it is closed
    assert run(*read).output == "hello\n"


@given(
    st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=8),
    st.integers(1, 7),
)
def test_chunks_are_the_lines_whatever_the_reads(sent: list[bytes], step: int) -> None:
    text = b"\n".join(sent)

    class Slow(io.BytesIO):
        def read1(self, _size: int | None = -1, /) -> bytes:
            return self.read(step)

    found = list(formats._lines(Slow(text)))
    stripped = [line.rstrip(b"\r") for line in sent]
    assert [line for some, _ in found for line in some] == [line for line in stripped if line]
    assert sum(size for _, size in found) == len(text)


def test_chunks_hand_on_a_line_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "READ_BYTES", 10)
    monkeypatch.setattr(formats, "MAX_LINE_BYTES", 25)
    first = next(found for found, _ in formats._lines(io.BytesIO(b"x" * 100)) if found)
    assert 25 < len(first[0]) <= 40


def test_pub_shows_progress_when_the_input_is_a_long_file(
    backend: MemoryBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del backend
    monkeypatch.setattr(pub, "MIN_PROGRESS_BYTES", 10_000)
    file = tmp_path / "lines"
    file.write_bytes(b"line\n" * (pub.MIN_PROGRESS_BYTES // 5 + 1))
    bars: list[int] = []

    class Bar:
        def __init__(self, length: int, **_: object) -> None:
            self.length = length

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            bars.append(self.length)

        def update(self, n_steps: int) -> None:
            bars.append(n_steps)

    monkeypatch.setattr(click, "progressbar", Bar)
    with file.open() as source:
        monkeypatch.setattr(sys, "stdin", source)
        main(["pub", "many"], standalone_mode=False)
    assert bars[-1] == file.stat().st_size == sum(bars[:-1])


def test_unknown_command_is_a_usage_error() -> None:
    assert run("dance").exit_code == 2


def test_help_names_all_commands() -> None:
    output = run("--help").output
    for name in ("serve", "broker", "check", "topics", "pub", "sub", "user"):
        assert f"  {name} " in output


def test_version_is_the_package_version() -> None:
    assert run("--version").output == f"router, version {VERSION}\n"
