"""Declarations: what they come to, and what is said of those that come to nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.pipelines.declaration import SinkSpec, Trigger
from router.pipelines.finding import GENERAL, SHIPPED, found, named, write_new
from router.pipelines.loading import load, parse
from router.pipelines.reading import DeclarationError, places
from router.pipelines.run import check_declared
from tests.unit.pipelines.declared import FILE, GOOD, is_at, read


def said(text: str) -> str:
    with pytest.raises(DeclarationError) as caught:
        read(text)
    return str(caught.value)


READ = re.compile(rf"read|{re.escape(str(FILE))}:\d+(:\d+)?: ")


def outcome(text: str) -> str:
    """Return `read`, or what is said of a text."""
    try:
        parse(text, FILE, "large")
    except DeclarationError as error:
        return str(error)
    return "read"


def test_declaration_is_read_in_full() -> None:
    pipeline = read()
    assert pipeline.name == "large"
    assert pipeline.source.topics == ("orders",)
    assert [step.name for step in pipeline.steps] == ["large", "minutes"]
    assert pipeline.sinks[0] == SinkSpec(
        "files", "parquet", "large", path="out", partition_by=("twice",), declared=("sink", 0)
    )
    assert (pipeline.sinks[1].name, pipeline.sinks[1].from_step) == ("topic", "minutes")
    assert pipeline.trigger == Trigger(every=10.0)
    assert pipeline.resources == {"spark.sql.shuffle.partitions": "2"}


@pytest.mark.parametrize(
    ("old", "new", "line", "there", "words"),
    [
        ('path = "out"', 'path = "out"\nurl = "x"', 27, '"x"', "a sink of kind parquet has no url"),
        ('path = "out"', "", 22, "[[sink", "a sink of kind parquet needs path"),
        ("topics =", "topcs =", 6, "topcs", "there is no key 'source.topcs'; did you mean topics?"),
        ("description", "descripton", 1, "descripton", "did you mean description?"),
        (
            'path = "out"',
            'pth = "out"',
            26,
            "pth",
            "there is no key 'sink.pth'; did you mean path?",
        ),
        ('path = "out"', "path = 7", 26, "7", "sink.path = 7: a text is expected"),
        ('format = "json"', 'format = "jsn"', 7, '"jsn"', "did you mean json?"),
        (
            'from = "large"',
            'from = "larg"',
            25,
            '"larg"',
            "there is no step 'larg'; did you mean large?",
        ),
        ('name = "minutes"', 'name = "records"', 19, '"records"', "another view"),
        ('every = "10s"', 'every = "soon"', 34, '"soon"', "trigger.every"),
        ('every = "10s"', 'every = "10s"\navailable_now = true', 34, '"10s"', "either"),
        ('"spark.sql.shuffle.partitions"', '"sparc.x"', 37, '"sparc.x"', "begin with spark."),
        (
            'kind = "parquet"',
            'kind = "iceberg"',
            24,
            '"iceberg"',
            "is none of topic, parquet, delta",
        ),
        (
            'topic = "minutes"',
            'topic = "minutes"\npath = "x"',
            32,
            '"x"',
            "of kind topic has no path",
        ),
        (
            'topics = ["orders"]',
            'topics = ["a"]\npattern = "b"',
            6,
            "[",
            "either topics or a pattern",
        ),
        ('topics = ["orders"]', 'pattern = "("', 6, '"("', "source.pattern = '(': missing ): ("),
        ('bad_records = "dlq"', 'bad_records = "drop"', 3, '"drop"', "none of fail, skip, dlq"),
        ("[trigger]", "[trigger", 33, "", "no TOML"),
        (
            "[trigger]",
            "[[trigger]]",
            33,
            "[[trigger",
            "trigger is one table: [trigger], not [[trigger]]",
        ),
        (
            "[trigger]",
            "[stream]\n[trigger]",
            33,
            "[stream",
            "stream is written as tables, [[stream]]",
        ),
        (
            "[trigger]",
            "[[steps]]\n[trigger]",
            33,
            "[[steps",
            "there is no key 'steps'; did you mean step?",
        ),
        ('topics = ["orders"]', 'topics = ["a", "a"]', 6, "[", "twice"),
        ('topic = "minutes"', 'options = { patienc = "1s" }', 31, "{", "did you mean patience?"),
        (
            'kind = "parquet"\nfrom = "large"\npath = "out"',
            'kind = "jdbc"\nfrom = "large"\nurl = "jdbc:mysql://a/b"\ntable = "t"',
            26,
            '"jdbc:mysql://a/b"',
            "the url jdbc:mysql://a/b does not begin with jdbc:postgresql:",
        ),
        (
            'kind = "parquet"\nfrom = "large"\npath = "out"',
            'kind = "jdbc"\nfrom = "large"\nurl = "jdbc:postgresql:b"\ntable = "t"\n'
            'options = { usr = "x" }',
            28,
            "{",
            "a sink of kind jdbc has no option 'usr'; did you mean user?",
        ),
        ("[resources]", "[limits]\nbad_share = 2\n[resources]", 37, "2", "from 0 to 1"),
    ],
)
def test_wrong_declaration_is_refused_with_its_place(
    old: str, new: str, line: int, there: str, words: str
) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    sentence = said(text)
    is_at(text, sentence, line, there)
    assert words in sentence


def test_settings_of_the_source_are_the_routers_own() -> None:
    text = GOOD.replace("[[step]]", '[source.settings]\n"pulsar.tokn" = "x"\n\n[[step]]', 1)
    assert "did you mean pulsar.token" in said(text)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    assert READ.match(outcome(text))


@given(st.sampled_from(GOOD.splitlines()), st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_line_may_be_broken(line: str, other: str) -> None:
    assert READ.match(outcome(GOOD.replace(line, other, 1)))


@pytest.mark.parametrize("shipped", sorted(path.stem for path in SHIPPED.glob("*.toml")))
def test_shipped_pipeline_says_what_it_is_for(shipped: str) -> None:
    assert load(SHIPPED / f"{shipped}.toml", shipped).description.endswith(".")


def test_general_template_is_in_order() -> None:
    check_declared(parse(GENERAL.replace("{name}", "x"), FILE, "x"))


@pytest.mark.parametrize(
    ("kind", "path", "refused"),
    [("parquet", "./out/", True), ("delta", "out", True), ("parquet", "out2", False)],
)
def test_parquet_table_has_one_sink(kind: str, path: str, refused: bool) -> None:
    more = f'[[sink]]\nname = "more"\nkind = "{kind}"\npath = "{path}"\n\n[trigger]'
    found = outcome(GOOD.replace("[trigger]", more))
    assert ("another sink writes to" in found) is refused


def test_new_pipeline_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_new(name, "archive", tmp_path)
    one, two = named("one", tmp_path), named("two", tmp_path)
    assert one.checkpoint != two.checkpoint
    assert one.steps[0].sql == two.steps[0].sql


def test_line_of_a_text_may_look_like_a_header() -> None:
    text = 'a = [{ b = """\n[*]\n""" }]\n[c]\nd = 1\n'
    found = places(text)
    assert (found["a",], found["c", "d"]) == (0, text.index("d"))


def test_new_pipeline_never_replaces_a_file(tmp_path: Path) -> None:
    path = write_new("one", "", tmp_path)
    path.write_text("mine")
    with pytest.raises(Exception, match="is there already"):
        write_new("one", "", tmp_path)
    assert path.read_text() == "mine"


def test_own_pipeline_goes_before_a_shipped_one(tmp_path: Path) -> None:
    own = write_new("archive", "", tmp_path)
    assert named("archive", tmp_path).origin.file == own
    assert [one.shipped for one in found(tmp_path) if one.name == "archive"] == [False, True]


def test_unknown_pipeline_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="did you mean archive"):
        named("archve", tmp_path)


JOINED = """
[[stream]]
name = "payments"
topics = ["payments"]
format = "json"
schema = "id BIGINT, paid BOOLEAN"

[[table]]
name = "customers"
path = "tables/customers"
schema = "name STRING, country STRING"
refresh = "5m"
"""


def test_streams_and_tables_are_views_of_their_own() -> None:
    pipeline = read(GOOD + JOINED)
    assert list(pipeline.sources()) == ["records", "payments"]
    assert pipeline.streams["payments"].topics == ("payments",)
    # Dead letters are not read again: as for the first source.
    assert pipeline.streams["payments"].skip_dead
    assert pipeline.tables[0].refresh == 300.0
    assert pipeline.sinks[1].from_step == "minutes"
    sql = "SELECT r.id, p.paid, c.country FROM records r JOIN payments p ON r.id = p.id"
    join = f"{sql} JOIN customers c ON r.customer.name = c.name"
    text = (GOOD + JOINED).replace("SELECT id, customer.name AS who,\n", f"{join}\n--")
    text = text.replace("       amount * 2 AS twice\nFROM records\n", "").replace(
        '["twice"]', '["paid"]'
    )
    check_declared(read(text))
    with pytest.raises(DeclarationError, match=r"there is no column 'payed'.*did you mean paid"):
        check_declared(read(text.replace("p.paid", "p.payed")))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "payments"', 'name = "records"', "there is another view 'records' already"),
        ('name = "customers"', 'name = "Payments"', "there is another view 'Payments' already"),
        ('name = "customers"', 'name = "large"', "there is another view 'large' already"),
        ('name = "customers"', 'name = "a b"', "a table's name is a view's"),
        ('topics = ["payments"]', 'pattern = "["', "missing ]"),
        ('topics = ["payments"]', 'topics = ["a"]\nurl = "kafka://a:1"', "there is no key"),
        ('path = "tables/customers"', "", "the table 'customers' has no path"),
        ('refresh = "5m"', 'format = "xml"', "is none of delta, parquet, json, csv, orc"),
    ],
)
def test_wrong_stream_or_table_is_refused(old: str, new: str, words: str) -> None:
    assert words in said(GOOD + JOINED.replace(old, new))
