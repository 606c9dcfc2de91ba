"""The commands on a router elsewhere: an application over HTTP, on the store in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from click.shell_completion import ShellComplete
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.cli import formats, main, status
from router.cli.contexts import Context
from router.cli.http_client import HttpClient, HttpRequest, HttpResponse
from router.cli.remote import RemoteConnection
from router.errors import BackendUnavailableError
from router.model import Message, Stored, TopicInfo, TopicName
from router.web import streams
from router.wire import ndjson
from tests.unit.cli.servers import live
from tests.unit.cli.test_commands import run
from tests.unit.web.applications import Site

FROM_THE_BEGINNING = ("--from", "earliest", "--timeout", "3")


@pytest.fixture(autouse=True)
def no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No contexts but the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ROUTER_CONTEXT", raising=False)


@pytest.fixture
def site() -> Iterator[Site]:
    """An application over the store in memory."""
    made = Site({})
    yield made
    made.close()


@pytest.fixture
def server(site: Site) -> Iterator[tuple[str, str]]:
    """The options that name the application, served on loopback."""
    with live(site) as url:
        yield "--server", url


def printed(server: tuple[str, str], *arguments: str, given: bytes = b"") -> bytes:
    result = run(*arguments, *server, given=given)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def test_topics_are_made_listed_described_and_deleted(server: tuple[str, str]) -> None:
    created = printed(server, "topics", "create", "orders", "--partitions", "3")
    assert created == b"Created persistent://public/default/orders\n"
    assert run("topics", "create", "orders", *server).exit_code == status.FAILED
    printed(server, "topics", "create", "prices", "--cleanup-policy", "compact")
    assert b"cleanupPolicy: compact\n" in printed(server, "topics", "describe", "prices")
    printed(server, "topics", "delete", "prices")
    assert run("topics", "create", "orders", "--partitions", "2", *server).exit_code == 1
    assert printed(server, "topics", "list") == b"orders  3\n"
    described = json.loads(printed(server, "topics", "describe", "orders", "--json"))
    assert (described["partitions"], described["stored"], described["groups"]) == (3, None, [])
    printed(server, "topics", "delete", "orders")
    assert json.loads(printed(server, "topics", "list", "--json")) == []


def test_internal_topics_are_listed_and_marked_when_they_are_requested(
    site: Site, server: tuple[str, str]
) -> None:
    printed(server, "topics", "create", "orders")
    site.backend.create_topic(TopicInfo(TopicName.parse("__own"), 3, internal=True), 1)
    assert printed(server, "topics", "list") == b"orders  1\n"
    listed = printed(server, "topics", "list", "--internal")
    assert listed == b"__own   3  internal\norders  1\n"
    assert json.loads(printed(server, "topics", "list", "--internal", "--json")) == [
        {"name": "__own", "partitions": 3, "internal": True},
        {"name": "orders", "partitions": 1, "internal": False},
    ]


def test_groups_are_listed_moved_and_deleted(server: tuple[str, str]) -> None:
    printed(server, "pub", "orders", given=b"a\nb\n")
    read = ("sub", "orders", "--group", "g", *FROM_THE_BEGINNING)
    assert printed(server, *read) == b"a\nb\n"
    assert b"\ng " in printed(server, "groups", "list", "orders")
    assert printed(server, *read) == b""
    printed(server, "groups", "reset", "orders", "g", "--to", "earliest")
    assert printed(server, *read, "--count", "1") == b"a\n"
    assert json.loads(printed(server, "groups", "list", "orders", "--json")) == [
        {"group": "g", "partition": 0, "backlog": 1, "consumers": 0}
    ]
    printed(server, "groups", "delete", "orders", "g")
    assert json.loads(printed(server, "groups", "list", "orders", "--json")) == []


@pytest.mark.parametrize(
    "line",
    [
        ("topics", "delete", "absent"),
        ("topics", "describe", "absent"),
        ("groups", "list", "absent"),
        ("groups", "reset", "there", "absent", "--to", "latest"),
        ("groups", "delete", "there", "absent"),
        ("sub", "absent"),
        ("sub", "absent", "--group", "g"),
    ],
)
def test_what_is_not_there_has_a_status_of_its_own(
    server: tuple[str, str], line: tuple[str, ...]
) -> None:
    printed(server, "topics", "create", "there")
    result = run(*line, *server)
    assert result.exit_code == status.NOT_FOUND
    assert result.output.startswith("Error: ")


def test_nothing_is_acknowledged_without_a_group(server: tuple[str, str]) -> None:
    printed(server, "pub", "orders", given=b"a\nb")
    for _ in range(2):
        assert printed(server, "sub", "orders", *FROM_THE_BEGINNING) == b"a\nb\n"
    assert json.loads(printed(server, "groups", "list", "orders", "--json")) == []


@pytest.mark.slow
def test_a_place_leads_to_what_is_behind_it(server: tuple[str, str]) -> None:
    printed(server, "pub", "orders", given=b"a\nb\nc\n")
    lines = printed(server, "sub", "orders", "--json", *FROM_THE_BEGINNING).splitlines()
    at = json.loads(lines[1])["position"]
    place = f"{at['ledger']}.{at['entry']}.{at['batch_index']}"
    assert printed(server, "sub", "orders", "--from", place, "--count", "1") == b"c\n"


def test_a_count_that_is_not_reached_has_a_status_of_its_own(server: tuple[str, str]) -> None:
    printed(server, "pub", "orders", given=b"a\n")
    for more in ((), ("--group", "g")):
        result = run("sub", "orders", "--count", "2", *more, *FROM_THE_BEGINNING, *server)
        assert (result.exit_code, result.stdout_bytes) == (status.TRY_AGAIN, b"a\n")


def test_what_is_not_acknowledged_comes_again(
    site: Site, server: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.node._idle = 0.0  # how long a partition stays with its consumer
    printed(server, "pub", "orders", given=b"a\n")
    read = ("sub", "orders", "--group", "g", *FROM_THE_BEGINNING)

    def broken(_: Stored) -> bytes:
        raise BrokenPipeError

    with monkeypatch.context() as patch:
        patch.setitem(formats.WRITERS, "text", broken)
        assert run(*read, *server).exit_code == status.OUTPUT_CLOSED
    listed = json.loads(printed(server, "groups", "list", "orders", "--json"))
    assert listed[0]["backlog"] == 1
    # At once to another consumer of the group, as soon as the partition is free.
    other = ("sub", "orders", "--group", "g", "--id", "other", "--count", "1", "--timeout", "20")
    assert printed(server, *other) == b"a\n"


def test_an_answer_that_got_lost_comes_again_soon(
    site: Site, server: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.node._idle = 0.0  # how long a partition stays with its consumer
    printed(server, "pub", "orders", given=b"a\n")
    whole, lost = HttpClient._once, list[HttpResponse]()

    def once(client: HttpClient, request: HttpRequest) -> HttpResponse:
        found = whole(client, request)
        if request.path.endswith("/messages") and not lost:
            lost.append(found)
            raise BackendUnavailableError("The connection is lost.")
        return found

    monkeypatch.setattr(HttpClient, "_once", once)
    read = ("sub", "orders", "--group", "g", "--from", "earliest", "--count", "1")
    assert printed(server, *read, "--timeout", "20") == b"a\n"
    assert b'"value":"YQ=="' in lost[0].data


def test_names_that_no_topic_has_are_refused_before_they_are_sent(
    server: tuple[str, str],
) -> None:
    for name in ("tö pic", "a/b", "../x", "persistent://other/space/x"):
        result = run("pub", name, *server, given=b"x\n")
        assert result.exit_code == status.FAILED
        assert "Error: " in result.output


def test_a_request_is_stored_once_however_often_it_is_sent(server: tuple[str, str]) -> None:
    there = RemoteConnection(Context(server[1]), lambda _: None)
    for _ in range(2):
        assert there.publish("orders", [Message(b"a")], "run-1") == 1
    there.close()
    assert printed(server, "sub", "orders", *FROM_THE_BEGINNING) == b"a\n"


def test_headers_and_keys_are_added_where_there_are_none(server: tuple[str, str]) -> None:
    lines = b'{"value":"a"}\n{"value":"b","key":"own","headers":{"h":"own"}}\n'
    given_options = ("--format", "ndjson", "--key", "k", "-H", "h=1", "-H", "i=2=3")
    printed(server, "pub", "orders", *given_options, given=lines)
    found = printed(server, "sub", "orders", *FROM_THE_BEGINNING, "--json").splitlines()
    told = [(one["key"], one["properties"]) for one in map(json.loads, found)]
    assert told == [("k", {"h": "1", "i": "2=3"}), ("own", {"h": "own", "i": "2=3"})]
    text = printed(server, "sub", "orders", *FROM_THE_BEGINNING, "--keys", "--headers")
    assert text == b"k\th=1\ti=2=3\ta\nown\th=own\ti=2=3\tb\n"


texts = st.text(st.characters(codec="utf-8"), max_size=10)
messages = st.lists(
    st.tuples(
        st.binary(max_size=30) | texts.map(str.encode),
        st.none() | st.binary(min_size=1, max_size=9),
        st.dictionaries(texts.filter(bool), texts, max_size=3),
        st.none() | st.integers(1, 2**40),
    ).map(lambda parts: Message(*parts)),
    min_size=1,
    max_size=5,
)
names = (f"t{number}" for number in range(1_000_000))


@pytest.mark.no_cover
@given(sent=messages)
@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
def test_what_sub_prints_as_json_pub_publishes_as_it_was(
    server: tuple[str, str], sent: list[Message]
) -> None:
    first, second = next(names), next(names)
    count = ("--from", "earliest", "--count", str(len(sent)), "--json")
    printed(server, "pub", first, "--format", "ndjson", given=ndjson.framed(sent))
    lines = printed(server, "sub", first, *count)
    printed(server, "pub", second, "--format", "ndjson", given=lines)
    for more in ((), ("--group", "g")):
        copied = printed(server, "sub", second, *count, *more)
        assert [ndjson.decode(line) for line in copied.splitlines()] == sent


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json", "cambria"])
def test_formats_go_both_ways(server: tuple[str, str], form: str) -> None:
    given_lines = {
        "text": b"a\nb\n",
        "json": b'{"a": 1}\n{"b":"\\n"}\n',
        "cambria": b"1.2.kab\n0.3.\x00\xff\n\n",
    }[form]
    printed(server, "pub", "orders", "--format", form, given=given_lines)
    assert printed(server, "sub", "orders", *FROM_THE_BEGINNING, "--format", form) == given_lines


def test_check_tries_a_router_elsewhere(server: tuple[str, str]) -> None:
    printed(server, "topics", "create", "there")
    told = json.loads(printed(server, "check", "--json"))
    assert [one["ok"] for one in told["checks"]] == [True, True, True]
    assert told["checks"][2]["sentence"] == "as anonymous: 1 topics can be seen"
    absent = run("check", "--server", "http://127.0.0.1:1", "--json")
    assert absent.exit_code == status.UNREACHABLE
    assert json.loads(absent.stdout)["status"] == status.UNREACHABLE


def test_a_context_stands_for_its_server(server: tuple[str, str]) -> None:
    run("context", "add", "there", *server)
    assert run("pub", "orders", given=b"a\n").exit_code == 0
    assert run("topics", "list").stdout == "orders  1\n"


def test_a_stream_goes_on_where_its_connection_ended(
    site: Site, server: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every connection ends after one event; the next begins behind it."""
    whole = streams.EventStream._run

    def cut(stream: streams.EventStream) -> Iterator[bytes]:
        for number, piece in enumerate(whole(stream)):
            yield piece.partition(b"\n\n")[0] + b"\n\n" if number else piece
            if number:
                return

    monkeypatch.setattr(streams.EventStream, "_run", cut)
    printed(server, "pub", "orders", given=b"a\nb\nc\nd\n")
    found = printed(server, "sub", "orders", "--from", "earliest", "--count", "4")
    assert found == b"a\nb\nc\nd\n"
    assert orjson.loads(site.client.get("/topics/orders/groups").data)["groups"] == []


def test_completion_knows_names_and_is_silent_about_failures(
    server: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed(server, "topics", "create", "orders")
    printed(server, "topics", "create", "other")
    run("context", "add", "there", *server)

    def complete(*words: str, last: str) -> list[str]:
        found = ShellComplete(main, {}, "router", "_ROUTER_COMPLETE")
        return [one.value for one in found.get_completions(list(words), last)]

    assert complete("sub", last="or") == ["orders"]
    assert complete("sub", *server, last="o") == ["orders", "other"]
    assert complete("topics", "list", "--context", last="") == ["local", "there"]
    assert complete("sub", "--server", "http://127.0.0.1:1", last="o") == []
    monkeypatch.setenv("ROUTER_CONTEXT", "nowhere")
    assert complete("sub", last="o") == []
