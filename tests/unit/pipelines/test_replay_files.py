"""A replay's files: whole or absent, in order, cut into appends that are the same for ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from router.errors import ReadFailedError, SettingError
from router.model import NOT_PARTITIONED, TopicName
from router.pipelines.jobs.replay_files import ReplayFiles, ReplayPlan, chunks, in_order, topics

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("event_time", pa.int64()),
    ]
)
OPTIONS: dict[str, Any] = {"archive": "table"}
Row = tuple[str, int, bytes | None, bytes | None, dict[str, str], int | None]


def write(path: Path, rows: list[Row]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 6
    columns[4] = [list(pairs.items()) for pairs in columns[4]]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
    parquet.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), path)


def rows_of(values: list[bytes], partition: int = 0) -> list[Row]:
    return [("t", partition, None, value, {}, None) for value in values]


def part(folder: Path, task: int, number: int) -> Path:
    return folder / f"part-{task:05}-5c7c8d9e-c{number:03}.snappy.parquet"


def made(files: ReplayFiles, parts: list[list[Row]]) -> ReplayPlan:
    def fill(folder: Path) -> None:
        folder.mkdir()
        for number, rows in enumerate(parts):
            write(part(folder, 0, number), rows)
        (folder / "_SUCCESS").touch()

    return files.make(OPTIONS, fill, lambda _: {"t": 0}, 5)


messages = st.tuples(
    st.sampled_from(["a", "b"]),
    st.integers(0, 4),
    st.one_of(st.none(), st.binary(max_size=4)),
    st.one_of(st.none(), st.binary(max_size=8)),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    st.one_of(st.none(), st.integers(0, 1 << 40)),
)


@pytest.mark.slow
@given(
    rows=st.lists(messages, max_size=40),
    counts=st.fixed_dictionaries({"a": st.integers(0, 5), "b": st.integers(0, 5)}),
    most=st.integers(1, 7),
)
def test_appends_hold_every_message_in_the_order_of_its_partition(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], counts: dict[str, int], most: int
) -> None:
    path = tmp_path_factory.mktemp("rows") / "part.parquet"
    write(path, rows)
    places = {name: (TopicName.parse(name), count) for name, count in counts.items()}
    found = list(chunks(path, places, most))
    assert all(0 < len(chunk.messages) <= most for chunk in found)
    assert [chunk.first for chunk in found] == [
        sum(len(one.messages) for one in found[:i]) for i in range(len(found))
    ]
    for topic, count in counts.items():
        for partition in range(max(1, count)):
            place = partition if count else NOT_PARTITIONED
            expected = [
                (key, value, properties, event_time)
                for name, old, key, value, properties, event_time in rows
                if name == topic and (not count or old % count == partition)
            ]
            assert expected == [
                (m.key, None if m.null else m.value, dict(m.properties), m.event_time)
                for chunk in found
                if (chunk.topic.local, chunk.partition) == (topic, place)
                for m in chunk.messages
            ]


def test_large_messages_are_appends_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    write(path, rows_of([bytes(600_000)] * 3))
    assert [
        len(chunk.messages) for chunk in chunks(path, {"t": (TopicName.parse("t"), 1)}, 1000)
    ] == [1, 1, 1]


def test_files_are_in_order_when_a_task_wrote_more_than_a_thousand(tmp_path: Path) -> None:
    expected = [part(tmp_path, task, number) for task in (2, 100_000) for number in (9, 999, 1000)]
    for path in reversed(expected):
        path.touch()
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".part-00000-x-c000.parquet.crc").touch()
    assert in_order(tmp_path) == expected


def test_topics_and_their_partitions_are_found(tmp_path: Path) -> None:
    write(part(tmp_path, 0, 0), rows_of([b"x"], 3) + rows_of([b"y"], 1))
    assert topics(tmp_path, 1) == {"t": 3}
    write(part(tmp_path, 0, 1), [("u", 0, None, b"", {}, None)])
    with pytest.raises(SettingError, match="at most 1 topics"):
        topics(tmp_path, 1)


def test_plan_is_the_same_after_a_restart(tmp_path: Path) -> None:
    plan = made(ReplayFiles(tmp_path / "replay"), [rows_of([b"a", b"b"]), rows_of([b"c"])])
    assert plan.rows == 3
    assert ReplayFiles(tmp_path / "replay").find(OPTIONS) == plan


def test_nothing_counts_when_writing_did_not_end(tmp_path: Path) -> None:
    files = ReplayFiles(tmp_path / "replay")
    with pytest.raises(ReadFailedError, match="not written to its end"):
        files.make(OPTIONS, lambda folder: folder.mkdir(), lambda _: {}, 5)
    assert files.find(OPTIONS) is None
    assert made(files, [rows_of([b"a"])]).rows == 1
    assert [path.name for path in (tmp_path / "replay").iterdir()] == ["rows"]


def test_restart_goes_on_at_the_first_file_that_is_not_finished(tmp_path: Path) -> None:
    files = ReplayFiles(tmp_path / "replay")
    plan = made(files, [rows_of([b"a"]), rows_of([b"b"]), rows_of([b"c"])])
    assert files.begin(plan, 0, 10) == 10
    files.finish(plan, 0)
    assert files.begin(plan, 1, 20) == 20
    again = ReplayFiles(tmp_path / "replay")
    found = again.find(OPTIONS)
    assert found == plan
    assert again.next(found) == 1
    assert again.begin(found, 1, 99) == 20
    for number in (1, 2):
        again.finish(found, number)
    assert again.next(found) == 3
    assert again.find(OPTIONS) == plan


def test_rows_that_are_gone_before_they_were_published_are_told(tmp_path: Path) -> None:
    files = ReplayFiles(tmp_path / "replay")
    plan = made(files, [rows_of([b"a"])])
    plan.files[0][0].unlink()
    with pytest.raises(ReadFailedError, match="is missing"):
        files.find(OPTIONS)


def test_manifest_of_an_earlier_version_is_not_called_damaged(tmp_path: Path) -> None:
    files = ReplayFiles(tmp_path / "replay")
    made(files, [rows_of([b"a"])])
    manifest = tmp_path / "replay" / "rows" / "manifest.json"
    found = json.loads(manifest.read_text())
    del found["append_rows"]
    manifest.write_text(json.dumps(found))
    with pytest.raises(ReadFailedError, match="an earlier version, which did not note how many"):
        files.find(OPTIONS)
    manifest.write_text("[]")
    with pytest.raises(ReadFailedError, match="is damaged"):
        files.find(OPTIONS)


def test_other_options_are_refused_when_a_replay_was_begun(tmp_path: Path) -> None:
    files = ReplayFiles(tmp_path / "replay")
    made(files, [rows_of([b"a"])])
    with pytest.raises(SettingError, match="another checkpoint"):
        files.find({"archive": "other"})


def test_progress_of_an_earlier_replay_says_nothing_about_this_one(tmp_path: Path) -> None:
    files = ReplayFiles(tmp_path / "replay")
    files.finish(made(files, [rows_of([b"a"])]), 0)
    (tmp_path / "replay" / "rows").rename(tmp_path / "aside")
    assert files.next(made(files, [rows_of([b"a"])])) == 0
