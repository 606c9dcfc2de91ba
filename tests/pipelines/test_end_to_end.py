"""Declared pipelines from topics to topics and tables: each message counts once, none is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from router.clocks import wall_ms
from router.errors import RouterError, SettingError
from router.model import REPLAYED, Message
from router.pipelines import finding
from router.pipelines.derived import rebuild_of, swap_of
from router.services.pipelines import read_status
from tests.pipelines.running import STORES, Site, site
from tests.pipelines.topics import create, publish, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.timeout(600)
MANY = 200_000

THREE_SINKS = """
[source]
topics = ["{topic}"]
format = "json"
schema = "id BIGINT, customer STRING, cents BIGINT"
max_rows = 60000

[[step]]
name = "priced"
sql = "SELECT id, customer, cents * 2 + 1 AS price FROM records WHERE cents >= 0"

[[step]]
name = "dated"
sql = "SELECT *, id % 3 AS part FROM priced"

[[sink]]
kind = "topic"
from = "priced"
topic = "{topic}.priced"

[[sink]]
kind = "parquet"
path = "parquet"
partition_by = ["part"]

[[sink]]
kind = "delta"
path = "delta"
partition_by = ["part"]
"""


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with site(request.param, request, tmp_path) as found:
        yield found


@pytest.fixture
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with site("embedded", request, tmp_path) as found:
        yield found


def orders(first: int, last: int) -> Iterator[Message]:
    for number in range(first, last):
        value = b'{"id": %d, "customer": "c%d", "cents": %d}' % (number, number % 7, number % 1000)
        yield Message(value, b"k%d" % (number % 7))


def priced(number: int) -> tuple[int, str, int]:
    """Return the row that the SQL makes of a message, in plain Python."""
    return number, f"c{number % 7}", number % 1000 * 2 + 1


def rows(frame: DataFrame) -> list[tuple[int, str, int]]:
    table = frame.select("id", "customer", "price").toArrow()
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_every_message_is_once_in_topic_parquet_and_delta(place: Site) -> None:
    topic = create(place.backend, place.opened.new_name().local, 4)
    text = THREE_SINKS.format(topic=topic.local)
    publish(place.backend, topic, orders(0, MANY - 10_000))
    place.run(text)
    publish(place.backend, topic, orders(MANY - 10_000, MANY))
    place.run(text)

    expected = [priced(number) for number in range(MANY)]
    assert rows(place.spark.read.parquet(str(place.folder / "parquet"))) == expected
    assert rows(place.spark.read.format("delta").load(str(place.folder / "delta"))) == expected
    stored = [one for part in read(place.backend, f"{topic.local}.priced") for one in part]
    values = (json.loads(one.message.value) for one in stored)
    assert sorted((v["id"], v["customer"], v["price"]) for v in values) == expected


AVRO = """{"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "note", "type": "string"}]}"""


def formats() -> dict[str, tuple[str, list[bytes | None], list[bytes | None]]]:
    """Return for each format its keys, good values and corrupt ones."""
    nothing: list[bytes | None] = [None]
    return {
        "text": ('format = "text"', [b"", b"a", "\u00fc".encode()], [b"\xff\xfe", *nothing]),
        "json": (
            'format = "json"\nschema = "id BIGINT, note STRING"',
            [b'{"id": 1, "note": "x"}', b'{"note": null}', b"{}"],
            [b"{", b"", b"[1]", b'{"id": "x"}', b"\xff", b'{"id": 1} x', *nothing],
        ),
        "csv": (
            'format = "csv"\nschema = "id BIGINT, note STRING"',
            [b"1,x", b'2,"a,b"', b",\n"],
            [b"x,1", b"1,2,3", b"1", b"1,a\n2,b", b"\xff", *nothing],
        ),
        "cambria": (
            'format = "cambria"',
            [b"1.2.abc", b"0.1.x1.1.yz"],
            [b"9.9.x", b"hello", b"-1.2.abc", b"1.1.\xff\xff", *nothing],
        ),
        "avro": (
            f"format = \"avro\"\nschema = '''{AVRO}'''",
            [b"\x02\x02x", b"\x00\x00"],
            [b"", b"\x02", b"\x02\x09abc", b"\x02\x02x\x00", *nothing],
        ),
    }


@pytest.mark.parametrize("form", formats())
def test_table_and_dead_letters_are_the_input_whatever_is_corrupt(here: Site, form: str) -> None:
    keys, good, bad = formats()[form]
    topic = create(here.backend, "input", 2)
    mixed = [value for _ in range(3) for value in [*good, *bad]]
    publish(
        here.backend,
        topic,
        [
            Message(value or b"", b"k", {"n": str(n)}, null=value is None)
            for n, value in enumerate(mixed)
        ],
        size=7,
    )
    here.run(
        f"""
        bad_records = "dlq"
        [source]
        topics = ["input"]
        {keys}
        [[step]]
        name = "kept"
        sql = "SELECT _partition AS partition, _position AS position, _value AS value FROM records"
        [[sink]]
        kind = "parquet"
        path = "table"
        """
    )
    table = here.spark.read.parquet(str(here.folder / "table")).distinct().collect()
    kept = {(row.partition, row.position): row.value for row in table}
    dead_letters = [one.message for part in read(here.backend, "input.dlq") for one in part]
    dead = {
        (int(one.properties["router-partition"]), one.properties["router-position"]): one
        for one in dead_letters
    }
    assert len(dead) == len(dead_letters) == 3 * len(bad)
    assert len(kept) == 3 * len(good)
    assert not kept.keys() & dead.keys()
    values = [*(bytes(value) for value in kept.values())]
    assert sorted(values) == sorted(3 * [value for value in good if value is not None])
    found = sorted((b"" if m.null else m.value, m.null) for m in dead_letters)
    assert found == sorted(3 * [(value or b"", value is None) for value in bad])
    for one in dead_letters:
        assert one.key == b"k"
        assert one.properties["router-topic"] == "input"
        assert one.properties["router-error"]
        assert mixed[int(one.properties["n"])] == (None if one.null else one.value)


def test_backfill_sends_no_bad_record_to_the_dead_letters_again(here: Site) -> None:
    topic = create(here.backend, "backfilled", 2)
    declared = """
        bad_records = "dlq"
        [source]
        topics = ["backfilled"]
        format = "json"
        schema = "id BIGINT"
        [[sink]]
        kind = "parquet"
        path = "table"
        """

    def dead() -> list[bytes]:
        parts = read(here.backend, "backfilled.dlq")
        return sorted(one.message.value for part in parts for one in part)

    publish(here.backend, topic, [Message(b"{"), Message(b'{"id": 1}'), Message(b"[")])
    here.run(declared)
    assert dead() == [b"[", b"{"]
    for name in ("checkpoints", "table"):
        shutil.rmtree(here.folder / name)
    publish(here.backend, topic, [Message(b"later")])
    here.run(declared)
    assert dead() == [b"[", b"later", b"{"]
    publish(here.backend, topic, [Message(b"last")])
    here.run(declared)
    assert dead() == [b"[", b"last", b"later", b"{"]
    assert here.spark.read.parquet(str(here.folder / "table")).count() == 1


def test_rebuilt_rows_of_a_range_of_time_are_swapped_in_for_those_of_the_table(here: Site) -> None:
    topic = create(here.backend, "rebuilt")
    for value in (b"1", b"2", b"3"):
        publish(here.backend, topic, [Message(value)])
        published = wall_ms()
        while wall_ms() <= published:
            pass
    declared = """
        [source]
        topics = ["rebuilt"]
        [[step]]
        name = "rows"
        sql = "SELECT int(value) id, 'old' rule, unix_millis(_publish_time) ms FROM records"
        [[sink]]
        kind = "delta"
        path = "table"
        """
    here.run(declared)
    table = str(here.folder / "table")

    def rows(path: str) -> dict[int, tuple[str, int]]:
        found = here.spark.read.format("delta").load(path).collect()
        assert len({row.id for row in found}) == len(found)
        return {row.id: (row.rule, row.ms) for row in found}

    _, since, until = (ms for _, (_, ms) in sorted(rows(table).items()))
    changed = here.declared(declared.replace("'old'", "'new'"))
    rebuild = rebuild_of(changed, "", since, until)
    here.run_pipeline(rebuild)
    status = read_status(Path(rebuild.checkpoint))
    assert status is not None
    assert status["complete"]
    assert rows(rebuild.sinks[0].path) == {2: ("new", since)}
    here.run_pipeline(swap_of(changed, "", (since, until), "id BETWEEN 2 AND 2"))
    assert {number: rule for number, (rule, _) in rows(table).items()} == {
        1: "old",
        2: "new",
        3: "old",
    }
    with pytest.raises(RouterError, match="id = 1"):
        here.run_pipeline(swap_of(changed, "", (since, until), "id = 1"))
    more = here.declared(declared.replace("'old' rule", "'new' rule, 1 AS more"))
    here.run_pipeline(rebuild_of(more, "", since, until))
    with pytest.raises(SettingError, match="mergeSchema"):
        here.run_pipeline(swap_of(more, "", (since, until), "id = 2"))
    growing = replace(more.sinks[0], options={"mergeSchema": "true"})
    more = replace(more, sinks=(growing,))
    here.run_pipeline(rebuild_of(more, "", since, until))
    here.run_pipeline(swap_of(more, "", (since, until), "id = 2"))
    found = here.spark.read.format("delta").load(table).where("more = 1").collect()
    assert [row.id for row in found] == [2]


def test_last_batch_counts_in_the_status_and_in_the_share_of_bad_records(here: Site) -> None:
    topic = create(here.backend, "shared")
    declared = """
        bad_records = "skip"
        [source]
        topics = ["shared"]
        format = "json"
        schema = "id BIGINT"
        [[sink]]
        kind = "parquet"
        path = "table"
        [limits]
        bad_share = 0.5
        """
    publish(here.backend, topic, [Message(b'{"id": 1}'), Message(b"{")])
    here.run(declared)
    told = read_status(here.folder / "checkpoints" / "test")
    assert told is not None
    assert (told["sinks"]["parquet"]["rows"], told["dead_letters"]) == (2, 1)
    publish(here.backend, topic, [Message(b"{"), Message(b"["), Message(b'{"id": 1}')])
    with pytest.raises(
        RouterError, match=r"2 of 3 records of a batch are bad, over limits\.bad_share"
    ):
        here.run(declared)


def shipped(name: str, **changes: str) -> str:
    """Return the text of a shipped pipeline with other words in it."""
    text = (finding.SHIPPED / f"{name}.toml").read_text("utf-8")
    for old, new in changes.items():
        assert f'"{old}"' in text or f"/{old}" in text
        text = text.replace(f'"{old}"', f'"{new}"')
    return text


def test_archive_is_audited_and_replayed_byte_for_byte(place: Site) -> None:
    topic = create(place.backend, place.opened.new_name().local, 3)
    messages = [
        Message(
            b"" if number % 5 == 0 else bytes([number % 256, 0xFF, number % 7]),
            [None, b"", b"key", b"\xff"][number % 4],
            {"a": str(number), "\u00fc": ""} if number % 3 else {},
            1_700_000_000_000 + number if number % 2 else None,
            null=number % 5 == 0,
        )
        for number in range(3_000)
    ]
    publish(place.backend, topic, messages, size=50)
    place.run(shipped("archive", orders=topic.local), "archive")
    table = place.folder / "pipelines" / "tables" / "archive"
    publish(place.backend, topic, messages[:10], size=5)
    audit = f"""
        [job]
        kind = "audit"
        topics = ["{topic.local}"]
        archive = "{table}"
    """
    lines = place.run(audit, "audit")
    assert lines[-1] == "True"
    assert [line.split(": ")[1] for line in lines[:-1]] == ["complete"] * 3
    assert sum(int(line.rpartition(" ")[2]) for line in lines[:-1]) == 10, "waiting"
    assert place.run(audit + "complete = true", "audit")[-1] == "False"

    target = f"{topic.local}.again"
    replay = f"""
        [job]
        kind = "replay"
        archive = "{table}"
        to = "{target}"
        rate = 1000000
    """
    assert place.run(replay, "replay")[-2:] == ["replayed all 3000 messages", "True"]
    *_, repeated, has_ended = place.run(replay, "replay")
    assert has_ended == "True"
    assert repeated.startswith("an earlier run replayed all 3000 messages, and this one none")
    for number, (before, after) in enumerate(
        zip(read(place.backend, topic), read(place.backend, target), strict=True)
    ):
        assert len(after) == 1_000
        for one, again in zip(before, after, strict=False):
            properties = dict(again.message.properties)
            assert properties.pop(REPLAYED).startswith(f"{topic.local}:{number}:")
            old, new = one.message, again.message
            assert (new.key, new.value, new.null) == (old.key, old.value, old.null)
            assert (properties, new.event_time) == (dict(old.properties), old.event_time)


def test_validate_and_audit_account_for_every_message(here: Site) -> None:
    topic = create(here.backend, "orders", 2)
    values = [b'{"id": %d}' % n if n % 3 else b'{"id": "%d"}' % n for n in range(300)]
    publish(here.backend, topic, [Message(value, b"k") for value in values], size=20)
    (here.folder / "orders.schema.json").write_text(
        '{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
    )
    here.run(shipped("validate"), "validate")
    good = [one.message for part in read(here.backend, "orders.valid") for one in part]
    dead = [one.message for part in read(here.backend, "orders.dlq") for one in part]
    assert sorted(one.value for one in good) == sorted(v for n, v in enumerate(values) if n % 3)
    assert sorted(one.value for one in dead) == sorted(v for n, v in enumerate(values) if not n % 3)
    assert {one.key for one in [*good, *dead]} == {b"k"}
    for one in dead:
        said = json.loads(one.value)["id"]
        assert one.properties["router-error"] == f"$.id: '{said}' is not of type 'integer'"

    table = here.folder / "pipelines" / "tables" / "archive"
    here.run(shipped("archive"), "archive")
    wrong = here.run(f'[job]\nkind = "audit"\ntopics = ["orders"]\narchive = "{table}"', "audit")
    assert wrong[-1] == "False", "what is archived and dead is there twice"
    assert sum(line.endswith("is there 2 times") for line in wrong) == 100
    here.spark.sql(
        f"DELETE FROM delta.`{table}` WHERE get_json_object(string(value), '$.id') % 3 = 0"
    )
    lines = here.run(
        f'[job]\nkind = "audit"\ntopics = ["orders"]\narchive = "{table}"\ncomplete = true', "audit"
    )
    assert lines[-1] == "True", lines


def test_rollup_counts_each_window_once(here: Site) -> None:
    topic = create(here.backend, "orders", 2)
    publish(here.backend, topic, [Message(b"x" * (n % 10)) for n in range(1_000)], size=100)
    text = shipped("rollup").replace('delay = "1 minute"', 'delay = "0 seconds"')
    text = text.replace("_publish_time, '1 minute'", "_publish_time, '1 millisecond'")
    here.run(text, "rollup")
    # What is published now closes the windows of before; its own may stay open.
    for _ in range(2):
        publish(here.backend, topic, [Message(bytes(100))])
        here.run(text, "rollup")
    table = here.spark.read.format("delta").load(str(here.folder / "pipelines/tables/rollup"))
    counted = [row.asDict() for row in table.where("largest < 100").collect()]
    assert {row["source"] for row in counted} == {"orders"}
    assert sum(row["messages"] for row in counted) == 1_000
    assert sum(row["bytes"] for row in counted) == sum(n % 10 for n in range(1_000))
    assert max(row["largest"] for row in counted) == 9
    metrics = [one.message for part in read(here.backend, "metrics") for one in part]
    assert {one.key for one in metrics} == {b"orders"}
    told = [json.loads(one.value) for one in metrics]
    assert sum(one["messages"] for one in told if one["largest"] < 100) == 1_000


EVOLVING = """
[source]
topics = ["evolving"]
[[step]]
name = "kept"
sql = "SELECT {columns} FROM records"
[[sink]]
kind = "delta"
path = "evolving"
options = {{ {options} }}
"""


def test_new_columns_come_by_choice_and_other_types_never(here: Site) -> None:
    topic = create(here.backend, "evolving")
    table = str(here.folder / "evolving")

    def step(value: bytes, columns: str, options: str = "") -> None:
        publish(here.backend, topic, [Message(value)])
        here.run(EVOLVING.format(columns=columns, options=options), "evolving")

    step(b"1", "value")
    with pytest.raises(RouterError) as added:
        step(b"2", "value, _partition AS part")
    step(b"3", "value, _partition AS part", 'mergeSchema = "true"')
    with pytest.raises(RouterError) as changed:
        step(b"4", "array(value) AS value, _partition AS part", 'mergeSchema = "true"')
    step(b"5", "value, _partition AS part")

    found = here.spark.read.format("delta").load(table).collect()
    assert sorted((row.value, row.part) for row in found) == [
        ("1", None),
        ("2", 0),
        ("3", 0),
        ("4", 0),
        ("5", 0),
    ]
    for error in (added, changed):
        assert str(error.value).startswith("sink delta: ")
        assert "\n" not in str(error.value)
        assert "schema" in str(error.value).lower() or "value" in str(error.value)
