"""What a session needs before it starts, and what is said where that is missing."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from router.errors import SettingError
from router.pipelines import connectors, session
from router.pipelines.declaration import JobSpec, Pipeline, SinkSpec, SourceSpec
from router.pipelines.failures import LACKING, NO_GROUP_ENDS, sentence


def java(folder: Path, says: str) -> dict[str, str]:
    """Return an environment whose Java is a script that says this."""
    (folder / "bin").mkdir()
    script = folder / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    script.chmod(0o755)
    return {"JAVA_HOME": str(folder)}


@pytest.mark.parametrize("says", ['openjdk version "17.0.15" 2025', 'java version "21"'])
def test_java_of_today_is_taken(says: str, tmp_path: Path) -> None:
    session.require_java(java(tmp_path, says))


@pytest.mark.parametrize("says", ['java version "1.8.0_402"', 'openjdk version "11.0.2"', "hello"])
def test_java_that_is_too_old_is_refused(says: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"too old for Spark: install a JDK 17"):
        session.require_java(java(tmp_path, says))


def test_missing_java_is_told_with_what_to_install(tmp_path: Path) -> None:
    for environ in ({"PATH": str(tmp_path)}, {"JAVA_HOME": str(tmp_path)}):
        with pytest.raises(SettingError, match=r"Java is missing .* install a JDK 17"):
            session.require_java(environ)


def test_missing_extra_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MODULES", ("nothing_of_that_name",))
    with pytest.raises(SettingError, match=r"checkout pip install '\.\[pipelines\]'"):
        session.require({})


def test_connectors_are_those_that_a_pipeline_needs() -> None:
    plain = Pipeline("p", SourceSpec(), sinks=(SinkSpec("s", "parquet"),))
    table = Pipeline("p", SourceSpec(), sinks=(SinkSpec("s", "delta"),))
    job = Pipeline("p", SourceSpec(), job=JobSpec("maintain", {"format": "parquet"}))
    assert session.needed(plain, "embedded") == []
    assert session.needed(plain, "kafka://host:1") == ["kafka"]
    assert session.needed(table, "embedded") == ["delta"]
    assert session.needed(job, "embedded") == []
    assert session.needed(Pipeline("p", SourceSpec(), job=JobSpec("audit")), "") == ["delta"]
    stream = Pipeline("p", SourceSpec(), job=JobSpec("validate", {"schemas": {}}))
    assert session.needed(stream, "kafka://host:1") == ["kafka"]


def test_secret_resources_are_not_on_the_command_line_when_spark_starts(tmp_path: Path) -> None:
    script, seen = tmp_path / "spark" / "bin" / "spark-submit", tmp_path / "seen"
    script.parent.mkdir(parents=True)
    # A status of 0 would have pyspark wait for ever.
    script.write_text(f'#!/bin/sh\nfor a; do echo "$a"; done > {seen}\nexit 1\n')
    script.chmod(0o755)
    resources = {"spark.hadoop.fs.s3a.secret.key": "hush", "spark.driver.memory": "1g"}
    environ = java(tmp_path, 'openjdk version "17.0.15" 2025')
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from router.pipelines.session import start\n"
            f"start('p', {resources!r}, [], {environ!r})",
        ],
        env=os.environ | {"SPARK_HOME": str(script.parent.parent)},
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert b"SettingError: Spark does not start" in done.stderr
    assert "spark.driver.memory=1g" in seen.read_text()
    assert "hush" not in seen.read_text()


@pytest.mark.parametrize(
    ("checkpoint", "kept"),
    [("/ck", True), ("file:///ck", True), ("hdfs://host/ck", False), ("s3a://bucket/ck", False)],
)
def test_files_of_a_checkpoint_elsewhere_are_written_as_spark_does(
    checkpoint: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Mapping[str, str]] = []
    monkeypatch.setattr(session, "_built", lambda _, conf: built.append(conf))
    monkeypatch.setattr(session, "make_home", lambda _: tmp_path)
    environ = java(tmp_path, 'openjdk version "17.0.15" 2025')
    session.start("p", {}, [], environ, checkpoint)
    assert ("spark.sql.streaming.checkpointFileManagerClass" in built[0]) == kept


def test_missing_connectors_are_told_with_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert connectors.jars([]) == []
    with pytest.raises(SettingError, match="`router pipeline install`"):
        connectors.jars(["kafka"])


def test_jar_that_is_not_what_was_pinned_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = hashlib.sha256(b"good").hexdigest()
    monkeypatch.setattr(connectors, "_ALL", {"a.jar": ("group:a:1", good)})
    (tmp_path / "a.jar").write_bytes(b"good")
    connectors.check(tmp_path)
    (tmp_path / "a.jar").write_bytes(b"evil")
    with pytest.raises(SettingError, match="group:a:1 is not what was pinned"):
        connectors.check(tmp_path)


def test_install_fetches_what_is_checked_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven, log = tmp_path / "mvn", tmp_path / "calls"
    maven.write_text(
        f"#!/bin/sh\necho call >> {log}\n"
        'for a; do case "$a" in -DoutputDirectory=*) d="${a#*=}";; esac; done\n'
        'mkdir -p "$d"; printf good > "$d/a.jar"\n'
    )
    maven.chmod(0o755)
    good = hashlib.sha256(b"good").hexdigest()
    monkeypatch.setattr(connectors, "_ALL", {"a.jar": ("group:a:1", good)})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    folder = connectors.install(print)
    assert connectors.install(print) == folder
    assert (folder / "a.jar").read_bytes() == b"good"
    assert log.read_text() == "call\n"


def test_missing_maven_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingError, match="apt-get install maven"):
        connectors.install(print)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `a` cannot be resolved. Did you mean"
            " [`b`]? SQLSTATE: 42703; line 3 pos 7;\n'Project ['a]\n+- Relation",
            "A column `a` cannot be resolved. Did you mean [`b`]?",
        ),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: boom\n"
            "Traceback (most recent call last):\n  File x\n"
            "router.errors.ReadFailedError: 5 messages of orders are lost\n  at org.apache.x",
            "5 messages of orders are lost",
        ),
        (
            "Job aborted. Caused by: x [USER_RAISED_EXCEPTION] bad record: not JSON (topic t,"
            " partition 1, position 3:4:0) SQLSTATE: P0001\n at x",
            "bad record in topic t, partition 1, position 3:4:0: not JSON",
        ),
        ("Caused by: x\nModuleNotFoundError: No module named 'router'\n at x", LACKING),
        (
            "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: append."
            " This output mode is not supported for streaming aggregations without watermark on"
            " streaming DataFrames/DataSets. SQLSTATE: 42KDE",
            NO_GROUP_ENDS,
        ),
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:"
            " [DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS] Changed.\nChanges:\nLatest schema is"
            " missing field(s): name SQLSTATE: XXKST\n=== Streaming Query ===\n",
            "the columns of a Delta table are not those that the run began with: Latest schema is"
            " missing field(s): name. The next run begins with the new ones",
        ),
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [DIVIDE_BY_ZERO]"
            " Division by zero. SQLSTATE: 22012\n=== Streaming Query ===\n",
            "Division by zero.",
        ),
        ("Python worker failed to connect back.\n=== Streaming Query ===\nId: x", None),
    ],
)
def test_failure_of_spark_is_one_sentence(text: str, said: str | None) -> None:
    assert sentence(text) == (said or "Python worker failed to connect back.")
