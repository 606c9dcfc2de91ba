"""Parameters of queries and paths: those of every route that cannot be read are refused."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st

import router.web
from router.backends import Start
from router.errors import BadReadOptionError
from router.web.console.filters import NAMES
from router.web.openapi.description import ParameterKind
from router.web.pulsar_admin.policies import POLICIES
from router.web.requests import MAX_NUMBER, MILLISECONDS, Query, number
from tests.unit.web import unreadable
from tests.unit.web.applications import Site

Sites = Callable[..., Site]

SUBSCRIPTION: Final = "/topics/public/default/t/subscription/s"
POLL: Final = "/events/t/g/c"
DMAAP: Final = {
    "events", "event_streams", "topics", "groups", "dead_letters",
    "acls", "keys", "admin", "ops", "metrics",
}  # fmt: skip
PIP64: Final = {"pulsar_rest"}
CONSOLE: Final = {"console", "openapi"}
_READ: Final = {name for name in vars(Query) if not name.startswith("_")}
_LOOKS: Final = {"request.args", "request.values", "request.query_string", "requests.query"}
_WORDS: Final = {"flag", "number", "words"}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """An application with a topic, a group and a consumer."""
    site = Site({})
    site.post("/events/t", "a")
    site.poll("/events/t/g/c")
    assert site.client.post(SUBSCRIPTION, data='{"id":"c"}').status_code == 200
    yield site
    site.close()


def unreadable_cases(site: Site, blueprints: set[str]) -> list[tuple[str, str, list[str]]]:
    found = unreadable.cases(unreadable.with_heads(unreadable.tables(site.app, blueprints)))
    assert found
    return found


def test_dmaap_parameter_that_cannot_be_read_is_400(site: Site) -> None:
    for method, name, urls in unreadable_cases(site, DMAAP):
        for url in urls:
            answer = site.client.open(url, method=method)
            assert answer.status_code == 400, url
            if method != "HEAD" and name != "last_event_id":
                assert answer.get_json()["mrErrorCode"] == 3010
                assert f"{name}: expected" in answer.get_json()["errorMessage"]


def test_pip64_parameter_that_cannot_be_read_is_40001(site: Site) -> None:
    for method, name, urls in unreadable_cases(site, PIP64):
        for url in urls:
            answer = site.client.open(url, method=method)
            assert answer.status_code == 400, url
            if method != "HEAD":
                assert answer.get_json()["error_code"] == 40001
                named = f"{name}: expected" in answer.get_json()["message"]
                assert named or name in {"after", "last_event_id"}


def test_parameter_of_a_page_that_cannot_be_read_is_a_problem(site: Site) -> None:
    for method, name, urls in unreadable_cases(site, CONSOLE):
        for url in urls:
            answer = site.client.open(url, method=method, headers={"Accept": "application/json"})
            assert (answer.status_code, answer.mimetype) == (400, "application/problem+json"), url
            if method != "HEAD" and name != "last_event_id":
                assert f"{name}: expected" in answer.get_json()["detail"]


def test_timeout_in_seconds_is_told_of_milliseconds(site: Site) -> None:
    message = site.client.get(f"{POLL}?timeout=5s").get_json()["errorMessage"]
    assert 'timeout: expected a whole number of milliseconds, not "5s".' in message


@pytest.mark.slow
def test_parameters_that_are_read_are_those_that_are_described(everything: Flask) -> None:
    described = {
        parameter.name
        for route in unreadable.all_routes(everything)
        for parameter in (*route.segments, *route.operation.parameters)
        if parameter.place == "query" or parameter.kind is ParameterKind.NUMBER
    }
    found = list(_read_parameters())
    # The values of policies, and of a selection of messages, are read by the names in their table.
    read = {name for _, name in found} | {policy.parameter for policy in POLICIES} | {*NAMES}
    missing = [f"{name} in {path.name}" for path, name in found if name not in described]
    assert not missing, f"name them in @operation(...) above the view that reads them: {missing}"
    assert not described - read, f"no view reads what is described: {described - read}"


@pytest.mark.slow
def test_each_route_reads_the_parameters_that_its_description_has(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = sites(consume_timeout="1ms")
    site.post("/events/t", "a")
    read: set[str] = set()
    for method in _READ:
        original = getattr(Query, method)

        def reading(
            query: Query, name: str, *more: Any, _of: Callable[..., Any] = original, **named: Any
        ) -> Any:
            read.add(name)
            return _of(query, name, *more, **named)

        monkeypatch.setattr(Query, method, reading)
    for route in unreadable.all_routes(site.app):
        read.clear()
        for path in (unreadable.example(route), unreadable.example(route) + "?stream"):
            site.client.open(path, method=route.method, data="{}").close()
        described = {parameter.name for parameter in route.operation.parameters}
        # Failures of pages look how they are to be told.
        hidden = read - described - {"format"}
        assert not hidden, f"{route.method} {route.path}: name in its @operation(...) {hidden}"


def test_only_one_module_looks_at_the_query() -> None:
    looking = {
        path.name
        for path, tree in _modules()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in _LOOKS)
        or (isinstance(node, ast.Constant) and node.value == "QUERY_STRING")
    }
    assert looking <= {"requests.py", "request.py"}


def _modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(Path(router.web.__path__[0]).rglob("*.py")):
        yield path, ast.parse(path.read_text())


def _read_parameters() -> Iterator[tuple[Path, str]]:
    """Yield the names of parameters that views read, as they stand in the code."""
    for path, tree in _modules():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            reads = (
                node.func.attr in _READ
                and ast.unparse(node.func.value).startswith(("query", "Query("))
                if isinstance(node.func, ast.Attribute)
                else ast.unparse(node.func) in _WORDS
            )
            first = node.args[-1] if ast.unparse(node.func) == "words" else node.args[0]
            if reads and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield path, first.value


def query(text: str) -> Query:
    return Query({"QUERY_STRING": text})


@given(text=st.text(max_size=9) | st.integers(-(2**62), 2**62).map(str))
def test_number_is_read_whole_or_refused(text: str) -> None:
    encoded = "".join(f"%{byte:02x}" for byte in text.encode(errors="surrogatepass"))
    if text.isascii() and text.isdigit():
        assert query(f"n={encoded}").number("n", 7, 100) == min(int(text), 100)
        assert number("n", text) == int(text)
        return
    if not text:
        assert query("n=").number("n", 7, 100) == 7
        return
    with pytest.raises(BadReadOptionError, match="n: expected a whole number, not"):
        query(f"n={encoded}").number("n", 7, 100)
    with pytest.raises(BadReadOptionError, match="n: expected a whole number up to"):
        number("n", text)


def test_long_numbers_are_bounded() -> None:
    assert query("n=" + "9" * 9999).number("n", 7, 100) == 100
    assert query("n=" + "0" * 9999 + "5").number("n", 7, 100) == 5
    assert number("n", "0" * 9999 + str(MAX_NUMBER)) == MAX_NUMBER
    for text in (str(MAX_NUMBER + 1), "9" * 9999, "0" * 20 + "9" * 20):
        with pytest.raises(BadReadOptionError):
            number("n", text)


def test_parameter_that_is_not_there_is_the_default() -> None:
    none = query("")
    assert none.number("n", 7, 100, MILLISECONDS) == 7
    assert none.flag("f", default=False) is False
    assert none.choice("c", ("a", "b"), "b") == "b"
    assert none.moment("m") is None
    assert none.text("t") is None


def test_empty_parameter_is_as_if_it_were_absent() -> None:
    empty = query("n=&c=&m=&t=")
    assert empty.number("n", 7, 100, MILLISECONDS) == 7
    assert empty.choice("c", ("a", "b"), "b") == "b"
    assert empty.moment("m") is None
    assert empty.target("m") is None


@pytest.mark.parametrize(
    "url",
    [
        "/events/t/g2/c?timeout=&limit=&maxBytes=&from=",
        f"{SUBSCRIPTION}/consumer/c/messages?timeout=&max_messages=&max_bytes=&schema_type=",
        "/topics/public/default/t/partitions/0/messages?timeout=&start=&after=&max_messages=",
        "/console/topics/t?tab=&page=",
        "/jetstream/api/INFO?form=",
    ],
)
def test_route_takes_empty_parameters_as_absent(sites: Sites, url: str) -> None:
    site = sites(consume_timeout="1ms")
    site.post("/events/t", "a")
    assert site.client.post(SUBSCRIPTION, data='{"id":"c"}').status_code == 200
    empty = site.client.get(url, headers={"Accept": "application/json"})
    plain = site.client.get(url.partition("?")[0], headers={"Accept": "application/json"})
    assert empty.status_code == plain.status_code == 200, empty.text


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("POST", "/events/t?partitionKey=%ff"),
        ("POST", "/events/t?partitionKey=a%C3"),
        ("GET", "/events/t/g/c?ack=%ff"),
        ("GET", "/topics/public/default/t/partitions/0/messages?start=%ff"),
        ("GET", "/topics/public/default/t/messages?last_event_id=%ff&stream"),
        ("GET", "/console/access/topics?q=%ff"),
        ("POST", "/dead-letters/t.dlq/discard?position=%ff"),
        ("GET", "/topics?x=%ff"),
    ],
)
def test_parameter_that_is_not_utf8_is_refused(site: Site, method: str, url: str) -> None:
    answer = site.client.open(url, method=method, data="a", headers={"Accept": "application/json"})
    if url.startswith("/topics?"):
        assert answer.status_code == 200  # nothing reads it
        return
    name = url.partition("?")[2].partition("=")[0]
    assert answer.status_code == 400, answer.text
    assert f"{name}: expected UTF-8" in answer.text


def test_first_of_a_name_counts() -> None:
    assert query("n=1&n=x").number("n", 7, 100) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("f", True), ("f=", True), ("f=1", True), ("f=YES", True), ("f=False", False), ("f=0", False)],
)
def test_flag_is_what_it_says(text: str, expected: bool) -> None:
    assert query(text).flag("f", default=not expected) is expected


def test_empty_flag_may_mean_no() -> None:
    assert query("f=").flag("f", default=False, bare=False) is False


def test_choice_and_moment_are_what_they_say() -> None:
    assert query("c=a").choice("c", ("a", "b"), "b") == "a"
    assert query("m=earliest").moment("m") is Start.EARLIEST
    assert query("m=17").moment("m") == 17
