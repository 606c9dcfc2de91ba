"""The line and the column that a sentence names are those of the token that it is about."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.pipelines.checks import check_sql
from router.pipelines.graph import refused
from router.pipelines.reading import DeclarationError
from tests.unit.pipelines.declared import GOOD, is_at, read

HEAD, _, _ = GOOD.partition("[[step]]")
TAIL = '[[sink]]\nkind = "topic"\ntopic = "t"\n'
SELECTED = st.sampled_from(["id", "amount", "'ä b'", "`id`", "abs(id)", "/* € */ 1"])
BETWEEN = st.sampled_from([", ", ",\n\t", " ,\n\n    ", ",\t", "\t-- é\n  , "])


def escaped(sql: str) -> str:
    """Return SQL as a text of one line that has its characters as they are, but for breaks."""
    return '"' + sql.replace("\n", "\\n").replace("\t", "\\t") + '"'


QUOTED: list[Callable[[str], str]] = [
    '"""\n{}\n"""'.format,
    '"""{}"""'.format,
    '"""\\\n \t {} \\\n """  # """'.format,
    "'''\n\n  {}'''".format,
    json.dumps,
    escaped,
]


def step(name: str, sql: str) -> str:
    """Return the declaration of a step, `sql` as it is quoted."""
    return f'[[step]]\nname = "{name}"\nsql  =\t{sql}\n\n'


def said(text: str) -> str:
    """Return what is said of a declaration."""
    with pytest.raises(DeclarationError) as caught:
        check_sql(read(text))
    return str(caught.value)


@given(
    quoted=st.sampled_from(QUOTED),
    before=st.lists(SELECTED, max_size=4),
    after=st.lists(SELECTED, max_size=2),
    comma=BETWEEN,
    bad=st.sampled_from(["nope", "r.nope", "nope(id)", "/* */ abs(nope)", "id id nope"]),
    steps=st.integers(0, 2),
    crlf=st.booleans(),
)
def test_token_of_sql_is_named_however_it_is_written(
    quoted: Callable[[str], str],
    before: list[str],
    after: list[str],
    comma: str,
    bad: str,
    steps: int,
    crlf: bool,
) -> None:
    sql = f"SELECT {comma.join([*before, bad, *after])}\nFROM records AS r"
    others = "".join(step(f"s{n}", quoted("SELECT id FROM records")) for n in range(steps))
    text = HEAD + others + step("bad", quoted(sql)) + TAIL
    text = text.replace("\n", "\r\n") if crlf else text
    is_at(text, said(text), text[: text.index("nope")].count("\n") + 1, "nope")


@pytest.mark.parametrize("quoted", QUOTED)
def test_place_that_spark_names_is_one_of_the_file(quoted: Callable[[str], str]) -> None:
    text = HEAD + step("one", quoted("SELECT id,\n\tnope AS x\nFROM records")) + TAIL
    pipeline = read(text)
    [declared] = pipeline.steps
    before, line = declared.sql.partition("nope")[0], text[: text.index("nope")].count("\n") + 1
    row, column = before.count("\n") + 1, len(before.rpartition("\n")[2])
    for where in (
        f"; line {row} pos {column};\n'Project",
        f".(line {row}, pos {column})\n\n== SQL",
    ):
        sentence = str(refused(pipeline, declared, ValueError(f"a column{where}")))
        is_at(text, sentence, line, "nope")
    far = str(refused(pipeline, declared, ValueError("line 9 pos 3")))
    assert int(far.split(":")[1]) <= text[: text.index("[[sink]]")].count("\n")
    begin = text[: text.index("SELECT id")].count("\n") + 1
    is_at(text, str(refused(pipeline, declared, ValueError("no place"))), begin, "SELECT id")


@pytest.mark.parametrize("quoted", QUOTED)
def test_column_of_a_schema_is_named_where_it_stands(quoted: Callable[[str], str]) -> None:
    schema = quoted("id BIGINT,\n\tcustomer STRUCT<name: STRING>, amount DOUBEL")
    text = GOOD.replace('"id BIGINT, customer STRUCT<name: STRING>, amount DOUBLE"', schema)
    is_at(text, said(text), text[: text.index("DOUBEL")].count("\n") + 1, "DOUBEL")


def test_column_that_is_ambiguous_is_named_where_it_is() -> None:
    sql = "SELECT r.id, id FROM records r JOIN records s ON r.id = s.id"
    text = HEAD + step("one", escaped(sql)) + TAIL
    is_at(text, said(text), text[: text.index("SELECT")].count("\n") + 1, "id FROM records r")


def test_texts_that_look_like_keys_and_tables_are_none() -> None:
    odd = 'key = """\\\n[source]\n\\"""\ntopics = 1\n"""\nsubject = \'\'\'\ntopics = 2\n\'\'\'\n'
    text = f"[ source ]  # one\n\t topics=\t7\n{odd}"
    with pytest.raises(DeclarationError) as caught:
        read(text)
    is_at(text, str(caught.value), 2, "7")


def test_declaration_without_a_sink_has_no_place_for_it() -> None:
    with pytest.raises(DeclarationError, match=r"large.toml:1: a pipeline has at least one sink"):
        read(HEAD)
