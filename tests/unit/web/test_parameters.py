"""Parameters of queries and paths: those of every route that cannot be read are refused."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import router.web
from router.backends import Start
from router.errors import BadReadOptionError
from router.web.parameters import MAX_NUMBER, MILLISECONDS, Query, number
from tests.unit.web import unreadable
from tests.unit.web.applications import Site
from tests.unit.web.unreadable import CHOICES, FLAGS, MOMENTS, NUMBERS

Sites = Callable[..., Site]

POLL: Final = "/events/t/g/c"
READ: Final = "/topics/public/default/t/partitions/0/messages"
TOPIC: Final = "/topics/public/default/t/messages?stream"
SUBSCRIPTION: Final = "/topics/public/default/t/subscription/s"
FETCH: Final = f"{SUBSCRIPTION}/consumer/c/messages"
DMAAP: Final = {
    ("GET", POLL): {"timeout": NUMBERS, "limit": NUMBERS, "maxBytes": NUMBERS}
    | {"from": MOMENTS, "ack": CHOICES},
    ("HEAD", POLL): {"timeout": NUMBERS, "from": MOMENTS},
    ("GET", "/events/t"): {"stream": FLAGS},
    ("GET", "/events/t?stream"): {
        "from": MOMENTS,
        "sample": NUMBERS,
        "last_event_id": ["x", "@", "1.2,"],
    },
    ("POST", "/topics/t/groups/g/reset"): {"to": [*MOMENTS, "1:2", "1:2:0,", "1:2:0,1:3:0"]},
    ("POST", "/topics/t/groups/g/reset?to=latest"): {"preview": FLAGS},
    ("GET", "/ready"): {"for": CHOICES},
}
CONSOLE: Final = {
    ("GET", "/console"): {"page": NUMBERS, "dialog": CHOICES, "format": CHOICES},
    ("GET", "/console/topics/t"): {"tab": CHOICES, "stored": NUMBERS, "with": CHOICES},
    ("GET", "/console/settings"): {"changed": FLAGS},
    ("GET", "/console/topics/t/export"): {"as": CHOICES},
    ("GET", "/console/topics/t/groups/g/reset"): {"to": CHOICES},
}
_FETCHING: Final = {"timeout": NUMBERS, "max_messages": NUMBERS, "max_bytes": NUMBERS}
_SCHEMA: Final = {"schema_type": ["", "AVRO", "text"]}
PIP64: Final = {
    ("GET", READ): _FETCHING | _SCHEMA | {"start": MOMENTS, "after": MOMENTS}
    | {"include_schema": FLAGS, "stream": FLAGS},
    ("HEAD", READ): {"timeout": NUMBERS},
    ("GET", f"{READ}?stream"): _FETCHING | _SCHEMA | {"last_event_id": ["x", "@"]}
    | {"sample": NUMBERS},
    ("GET", TOPIC): _SCHEMA | {"start": MOMENTS, "sample": NUMBERS, "last_event_id": ["x", "@"]},
    ("POST", SUBSCRIPTION): {"start": MOMENTS},
    ("GET", FETCH): _FETCHING | _SCHEMA | {"stream": FLAGS},
    ("GET", f"{FETCH}?stream"): _FETCHING | _SCHEMA,
    ("HEAD", FETCH): {"max_messages": NUMBERS},
    ("GET", "/topics/public/default/t/partitions/{partition}/messages"): {"partition": NUMBERS},
    ("POST", "/topics/public/default/t/partitions/{partition}"): {"partition": NUMBERS},
}  # fmt: skip
_READ: Final = {name for name in vars(Query) if not name.startswith("_")}
_LOOKS: Final = {"request.args", "request.values", "request.query_string", "intake.query"}
Cases = dict[tuple[str, str], dict[str, list[str]]]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """An application with a topic and a consumer."""
    site = Site({})
    site.post("/events/t", "a")
    assert site.client.post(SUBSCRIPTION, data='{"id":"c"}').status_code == 200
    yield site
    site.close()


@pytest.mark.parametrize(("method", "name", "urls"), unreadable.cases(DMAAP))
def test_dmaap_parameter_that_cannot_be_read_is_400(
    site: Site, method: str, name: str, urls: list[str]
) -> None:
    for url in urls:
        answer = site.client.open(url, method=method)
        assert answer.status_code == 400, url
        if method != "HEAD" and name != "last_event_id":
            assert answer.get_json()["mrErrorCode"] == 3010
            assert f"{name}: expected" in answer.get_json()["errorMessage"]


@pytest.mark.parametrize(("method", "name", "urls"), unreadable.cases(PIP64))
def test_pip64_parameter_that_cannot_be_read_is_40001(
    site: Site, method: str, name: str, urls: list[str]
) -> None:
    for url in urls:
        answer = site.client.open(url, method=method)
        assert answer.status_code == 400, url
        if method != "HEAD":
            assert answer.get_json()["error_code"] == 40001
            named = f"{name}: expected" in answer.get_json()["message"]
            assert named or name in {"after", "last_event_id"}


@pytest.mark.parametrize(("method", "name", "urls"), unreadable.cases(CONSOLE))
def test_parameter_of_a_page_that_cannot_be_read_is_a_problem(
    site: Site, method: str, name: str, urls: list[str]
) -> None:
    for url in urls:
        answer = site.client.open(url, method=method, headers={"Accept": "application/json"})
        assert (answer.status_code, answer.mimetype) == (400, "application/problem+json"), url
        assert f"{name}: expected" in answer.get_json()["detail"]


def test_timeout_in_seconds_is_told_of_milliseconds(site: Site) -> None:
    message = site.client.get(f"{POLL}?timeout=5s").get_json()["errorMessage"]
    assert 'timeout: expected a whole number of milliseconds, not "5s".' in message


def test_every_parameter_that_views_read_is_in_a_table() -> None:
    tables: list[Cases] = [DMAAP, PIP64, CONSOLE, unreadable.ADMIN]
    covered = {name for table in tables for names in table.values() for name in names}
    # Any text is a key.
    assert {name for _, name in _read_parameters()} == covered | {"partitionKey"}


def test_only_one_module_looks_at_the_query() -> None:
    looking = {
        path.name
        for path, tree in _modules()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in _LOOKS)
        or (isinstance(node, ast.Constant) and node.value == "QUERY_STRING")
    }
    assert looking <= {"parameters.py", "intake.py", "environ.py", "later.py"}


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
                else ast.unparse(node.func) in {"flag", "number"}
            )
            first = node.args[0]
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
