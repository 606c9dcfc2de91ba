"""Tests of pipelines on Spark: the shipped ones pass, and what is wrong is found with its line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from router.pipelines.declaration import Pipeline
from router.pipelines.loading import parse
from router.pipelines.queries import RunFailedError
from router.pipelines.reading import DeclarationError
from router.pipelines.testing.analysis import analyse
from router.pipelines.testing.cases import load
from router.pipelines.testing.running import run
from tests.pipelines.quick import ready, unmeasured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(900), pytest.mark.java, pytest.mark.slow]
CONFIG = Path("config").absolute()
DECLARED = """\
[source]
topics = ["orders"]
format = "json"
schema = "id BIGINT, at TIMESTAMP, props MAP<STRING, STRING>"
watermark = { column = "at", delay = "1 minute" }

[[step]]
name = "all_of_them"
sql = "SELECT * FROM records"

[[step]]
name = "one"
sql = '''
SELECT id,
       props
FROM all_of_them'''

[[sink]]
kind = "parquet"
path = "out"
"""


def declared(old: str = "", new: str = "") -> Pipeline:
    """Return the declaration with something changed."""
    assert old in DECLARED
    return parse(DECLARED.replace(old, new, 1), Path("orders.toml"), "orders")


def test_a_bad_record_ends_a_case_and_its_sentence_is_compared(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "orders.toml").write_text(DECLARED)
    file = tmp_path / "test.toml"
    file.write_text(
        'pipeline = "orders.toml"\n[[case]]\nerror = "x"\n[[case.batch]]\nrecords = "no order"\n'
    )
    test = load(file, tmp_path)
    (tmp_path / "case").mkdir()
    with pytest.raises(RunFailedError, match="bad record in topic orders, partition 0"):
        run(spark, test.pipeline, test.cases[0], tmp_path / "case")


def test_json_without_declared_columns_has_those_of_the_case(
    spark: SparkSession, tmp_path: Path
) -> None:
    text = '[source]\ntopics = ["a"]\nformat = "json"\n[[sink]]\nkind = "topic"\ntopic = "b"\n'
    (tmp_path / "a.toml").write_text(f'{text}[[step]]\nname = "n"\nsql = "SELECT n FROM records"\n')
    file = tmp_path / "test.toml"
    file.write_text(
        'pipeline = "a.toml"\n[[case]]\n[[case.batch]]\nrecords = \'{"n": 1}\'\n'
        '[case.expect]\ntopic = \'{"value": {"n": 1}}\'\n'
    )
    test = load(file, tmp_path)
    (tmp_path / "case").mkdir()
    assert run(spark, test.pipeline, test.cases[0], tmp_path / "case") == {
        "topic": ({"value": '{"n":1}'},)
    }


@pytest.mark.parametrize(
    ("old", "new", "where", "words"),
    [
        ("       props", "       substring(id)", "15:8", "requires [2, 3] parameters"),
        ("       props", "       props + 1 AS x", "15:8", "data type mismatch"),
        ("SELECT id,\n       props", "SELECT DISTINCT id", "14:1", "window(COLUMN"),
        ("id BIGINT", "id BIGINT PRIMARY KEY", "4:21", "or a comma, not PRIMARY"),
        ("id BIGINT", "id BIGINT, m MAP<MAP<INT, INT>, INT>", "9:8", "Input schema"),
        ("FROM all_of_them", "FROM nowhere.tables", "16:6", "`nowhere`.`tables` cannot be found"),
        ("SELECT id,", "SELECT count(DISTINCT id),", "14:1", "step one: "),
        ('kind = "parquet"\npath = "out"', 'kind = "topic"', "18:1", "sink topic: it names no"),
    ],
)  # fmt: skip
def test_spark_refuses_with_the_place_in_the_step(
    spark: SparkSession, old: str, new: str, where: str, words: str
) -> None:
    changed = declared(old, new)
    with pytest.raises(DeclarationError) as caught:
        analyse(spark, changed)
    assert str(caught.value).startswith(f"orders.toml:{where}: ")
    assert words in str(caught.value)


def test_spark_takes_what_is_in_order(spark: SparkSession) -> None:
    analyse(spark, declared())


def test_shipped_tests_pass_and_a_changed_row_fails(tmp_path: Path) -> None:
    ready()
    shutil.copytree(CONFIG, tmp_path / "config")
    file = tmp_path / "config" / "pipelines" / "tests" / "large-orders.toml"
    text = file.read_text()
    assert '"orders": 2' in text
    _, _, cases = text.partition('pipeline = "../large-orders.toml"')
    other = f'pipeline = "../large-orders.toml"{cases}'.replace('"orders": 2', '"orders": 3')
    file.with_name("other.toml").write_text(other)
    command = [sys.executable, "-P", "-m", "router", "pipeline", "test", "--junit", "report.xml"]
    with unmeasured():
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )
    assert done.returncode == 1, done.stdout + done.stderr
    assert '    -{"customer": "anna", "minute": "2026-01-01T09:00:00Z", "orders": 3' in done.stdout
    assert "4 cases, 1 failed" in done.stdout
    suites = ElementTree.parse(tmp_path / "report.xml").getroot()
    assert {one.attrib["name"]: one.attrib["failures"] for one in suites} == {
        "config/pipelines/tests/large-orders.toml": "0",
        "config/pipelines/tests/other.toml": "1",
    }
