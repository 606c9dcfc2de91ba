"""Tests of pipelines as files: what they declare, how rows are compared, reported and written."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from router.cli import main
from router.pipelines.reading import DeclarationError
from router.pipelines.testing import running
from router.pipelines.testing.cases import Case, Row, load
from router.pipelines.testing.comparing import CaseResult, difference, line
from router.pipelines.testing.reporting import lines, write_junit
from router.pipelines.testing.writing import add_case, update
from tests.unit.pipelines.declared import GOOD

DECLARED = GOOD.replace('topics = ["orders"]', 'topics = ["orders", "other"]')
TEST = """\
# Kept.
[[case]]
name = "one"

[[case.batch]]
at = 2026-01-01T09:00:00+01:00
records = '''
{"id": 1}
{"id": 2}
'''

[[case.batch]]
messages = [{ topic = "other", key = "k", base64 = "/w==", properties = { a = "b" } }, {}]

[case.expect]
files = '''
{"id": 1}
'''
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of tests beside the declaration that it tests."""
    (tmp_path / "large.toml").write_text(DECLARED)
    (tmp_path / "tests").mkdir()
    file = tmp_path / "tests" / "large.toml"
    file.write_text(TEST)
    return file


@pytest.mark.parametrize("name", ["large", "tests/large.toml"])
def test_a_test_is_named_as_its_pipeline_or_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(file.parent.parent)
    monkeypatch.setattr(running, "start", lambda _pipeline: None)
    monkeypatch.setattr(
        running,
        "results",
        lambda _spark, test: [CaseResult(one, {}, "", 0.0) for one in test.cases],
    )
    command = ["pipeline", "test", name, "--folder", ".", "--json"]
    result = CliRunner().invoke(main, command)
    assert [one["case"] for one in json.loads(result.stdout)] == ["one"], result.output
    file.unlink()
    result = CliRunner().invoke(main, command)
    assert (result.exit_code, result.stderr) == (78, "Error: there is no test tests/large.toml\n")


def test_batches_are_rows_of_the_source(file: Path) -> None:
    (case,) = load(file, file.parent).cases
    first, second = case.batches
    assert [row["position"] for row in first] == ["0:0", "0:1"]
    assert first[0]["value"] == "eyJpZCI6IDF9"
    assert first[0]["topic"] == "orders"
    assert first[0]["publish_time"] == "2026-01-01T09:00:00+01:00"
    assert {**second[0], "publish_time": ""} == {
        "topic": "other",
        "partition": 0,
        "position": "0:0",
        "index": 0,
        "key": "aw==",
        "value": "/w==",
        "properties": {"a": "b"},
        "publish_time": "",
    }
    assert second[1]["value"] is None
    assert second[1]["index"] == 2
    assert second[1]["publish_time"] == "2026-01-01T00:00:01+00:00"
    assert case.expected == {"files": ({"id": 1},)}


@pytest.mark.parametrize(
    ("old", "new", "where", "words"),
    [
        ("files = ", "filse = ", "16:1", "there is no sink 'filse'; did you mean files?"),
        ("{\"id\": 1}\n'''\n", "{]\n'''\n", "16:9", "is no JSON"),
        ("[case.expect]\nfiles = '''\n{\"id\": 1}\n'''\n", "", "2:1", "expects nothing"),
        ("records = ", "recrods = ", "7:1", "there is no key 'case.batch.recrods'"),
        ("at = 2026-01-01T09:00:00+01:00", 'at = "noon"', "6:6", "is no time"),
        ('"/w=="', '"/w"', "13:12", "no base64"),
        ('"other"', '"othr"', "12:1", "no source reads the topic 'othr'; did you mean other?"),
        ("# Kept.", '[[case]]\nname = "one"\nerror = "x"', "1:1", "two cases"),
        ("# Kept.", 'pipeline = "nowhere.toml"', "", "nowhere.toml"),
    ],
)
def test_what_no_test_says_is_refused(
    file: Path, old: str, new: str, where: str, words: str
) -> None:
    head, _, tail = TEST.rpartition(old)
    file.write_text(head + new + tail)
    with pytest.raises(DeclarationError) as caught:
        load(file, file.parent)
    assert words in str(caught.value)
    assert not where or str(caught.value).startswith(f"{file}:{where}: ")


def test_case_is_of_a_topic_that_the_pipeline_reads(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent.parent)
    command = ["pipeline", "test", "large", "--folder", ".", "--from-topic", "othre"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 78
    assert result.stderr == "Error: large reads no topic 'othre'; did you mean other?\n"


def test_records_of_a_file_are_lines(file: Path) -> None:
    (file.parent / "orders.jsonl").write_text('{"id": 7}\n\n{"id": 8}\n')
    file.write_text('[[case]]\nerror = "x"\n[[case.batch]]\nfile = "orders.jsonl"\n')
    (case,) = load(file, file.parent).cases
    assert [row["index"] for row in case.batches[0]] == [0, 1]


VALUES = st.none() | st.booleans() | st.integers() | st.text()
ROWS = st.lists(st.dictionaries(st.sampled_from("abcd"), VALUES, min_size=1), max_size=5)


@given(ROWS, st.randoms())
def test_rows_agree_in_any_order_and_differ_if_one_is_missing(
    rows: list[Row], random: object
) -> None:
    other = sorted(rows, key=lambda _row: random.random())  # type: ignore[attr-defined]
    assert difference(rows, other) == []
    if rows:
        assert any(one.startswith("-") for one in difference(rows, other[1:]))
        assert any(one.startswith("+") for one in difference(other[1:], rows))


@pytest.mark.parametrize(
    ("expected", "came"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"value": {"a": 1}}, {"value": '{"a": 1, "b": 2}', "key": None}),
        ({"at": "2026-01-01T00:00:00Z"}, {"at": "2026-01-01T00:00:00.000Z"}),
    ],
)
def test_only_what_is_named_is_compared(expected: Row, came: Row) -> None:
    assert difference([expected], [came]) == []
    assert difference([expected], [came, came]) != []


def test_a_sink_that_is_to_get_nothing_must_not_get_rows() -> None:
    assert difference([], [{"a": 1}]) != []


def result(**given: object) -> CaseResult:
    """Return the result of a case that expects one row of a sink, with something changed."""
    case = Case("one", (), {"files": ({"id": 1},)}, str(given.get("wants", "")))
    return CaseResult(
        case, {"files": ({"id": given.get("id", 1)},)}, str(given.get("error", "")), 0.5
    )


def test_results_are_lines_and_a_report(tmp_path: Path) -> None:
    assert list(lines(result())) == ["passed  one  (0.5 s)"]
    assert list(lines(result(id=2)))[1:] == ["  sink files:", '    -{"id": 1}', '    +{"id": 2}']
    assert list(lines(result(error="no\x00")))[1:] == ["  it ended with: no\x00"]
    assert list(lines(result(wants="bad", error="a bad record"))) == ["passed  one  (0.5 s)"]
    assert "+error: none" in "".join(lines(result(wants="bad")))
    report = tmp_path / "r.xml"
    write_junit(report, {Path("a.toml"): [result(), result(error="no\x00")]})
    suite = ElementTree.parse(report).getroot()[0]
    assert suite.attrib["tests"] == "2"
    assert suite.attrib["failures"] == "1"
    assert [one.attrib["name"] for one in suite] == ["one", "one"]
    assert suite[1][0].text == "it ended with: no?"


@given(rows=st.lists(st.dictionaries(st.text(), st.text(), min_size=1), max_size=3))
def test_what_came_is_what_is_expected_when_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row]
) -> None:
    folder = tmp_path_factory.mktemp("update")
    (folder / "large.toml").write_text(DECLARED)
    file = folder / "test.toml"
    file.write_text(TEST.replace("# Kept.", '# Kept.\npipeline = "large.toml"'))
    came = {"files": tuple(rows), "dead-letters": ()}
    (before,) = load(file, folder).cases
    update(file, 0, CaseResult(before, came, "", 0.1))
    (after,) = load(file, folder).cases
    assert file.read_text().startswith("# Kept.\n")
    assert after.batches == before.batches
    assert sorted(map(line, after.expected["files"])) == sorted(map(line, rows))
    assert CaseResult(after, came, "", 0.1).failures() == []


def test_an_error_is_written_in_the_place_of_rows(file: Path) -> None:
    update(file, 0, result(error="bad record"))
    (case,) = load(file, file.parent).cases
    assert (case.error, case.expected) == ("bad record", {})


def test_messages_become_a_case(file: Path) -> None:
    before = load(file, file.parent).cases[0]
    messages = [row for batch in before.batches for row in batch]
    plain = [json.loads(json.dumps({k: v for k, v in m.items() if v})) for m in messages]
    file.unlink()
    add_case(file, "from orders", plain)
    (case,) = load(file, file.parent, complete=False).cases
    assert case.name == "from orders"
    assert [dict(one) for one in case.batches[0]] == messages
