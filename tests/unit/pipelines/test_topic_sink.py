"""A topic has every staged row once, wherever the process ends and whatever is computed again."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import settings as all_settings
from router.backends import Batch, Receipt
from router.backends.memory import MemoryBackend
from router.errors import (
    BackendTimeoutError,
    PublishRefusedError,
    RouterError,
    TopicTerminatedError,
)
from router.model import Message, TopicInfo, TopicName
from router.pipelines.declaration import SinkSpec
from router.pipelines.sinks import SinkContext, tidy_sink
from router.pipelines.sinks.chunks import chunks
from router.pipelines.sinks.staging import SinkTopic, Staging, StagingDisk, StagingPlan
from router.pipelines.sinks.topic import TopicSink
from tests.unit.pipelines.staged import SCHEMA, CrashError, FailingDisk, Row, writing

TOPIC = TopicName.parse("out")
FAST = settings(max_examples=60)
Rows = st.lists(
    st.tuples(
        st.sampled_from([None, b"a", b"b", b"c"]), st.one_of(st.none(), st.binary(max_size=30))
    ),
    max_size=40,
)


class Mortal(MemoryBackend):
    """A store whose client ends at a call, before it is heard or before its answer comes."""

    def __init__(self) -> None:
        super().__init__(auto_create=True)
        self.left = -1
        self.heard = False
        self.failures: list[RouterError] = []
        self.calls = 0

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        if self.left == 0 and not self.heard:
            raise CrashError
        receipt = super().publish(batch, timeout)
        if self.left == 0:
            raise CrashError
        self.left -= 1
        return receipt


class World:
    """A store, and a checkpoint that a sink is started on again and again."""

    def __init__(self, folder: Path, partitions: int = 2, **options: str) -> None:
        self.backend = Mortal()
        self.backend.create_topic(TopicInfo(TOPIC, partitions), 1)
        self.folder = folder
        self.flags: dict[str, str] = {"data.dir": str(folder)}
        self.options = {"patience": "1s"} | options
        self.now_ms = 1_000
        self.told: list[str] = []
        self.topic, self.pipeline, self.read = "out", "p", "in"

    def new_checkpoint(self, name: str) -> None:
        (self.folder / "check" / "s").mkdir(parents=True, exist_ok=True)
        (self.folder / "check" / "s" / "metadata").write_text(json.dumps({"id": name}))

    def context(self) -> SinkContext:
        return SinkContext(
            self.pipeline,
            str(self.folder / "check"),
            self.backend,
            all_settings.load(None, {}, self.flags),
            failed=lambda sink, error: self.told.append(str(error)),
            wall_ms=lambda: self.now_ms,
            reads=lambda topic: topic.local == self.read,
        )

    @property
    def sink(self) -> SinkSpec:
        return SinkSpec("s", "topic", topic=self.topic, options=self.options)

    def run(
        self,
        batch: int,
        rows: Sequence[Row],
        disk: StagingDisk | None = None,
        limits: StagingPlan | None = None,
    ) -> None:
        TopicSink(self.sink, self.context(), disk, limits).run(batch, writing(rows))

    def stored(self) -> Iterator[Message]:
        for log in self.backend.topic(TOPIC).logs.values():
            yield from (stored.message for stored in log.messages)

    def values(self) -> Counter[Row]:
        return Counter(
            (message.key, None if message.null else message.value) for message in self.stored()
        )


@pytest.fixture
def world(folder: Path) -> World:
    world = World(folder)
    world.new_checkpoint("first")
    return world


@pytest.mark.slow
@FAST
@given(
    rows=Rows,
    step=st.integers(1, 16),
    call=st.integers(-1, 6),
    late=st.booleans(),
    limits=st.integers(1, 7),
    seed=st.integers(0, 9),
)
def test_run_publishes_once_what_is_staged_when_it_was_killed_and_other_rows_come_back(
    rows: list[Row], step: int, call: int, late: bool, limits: int, seed: int
) -> None:
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.new_checkpoint("first")
        world.backend.left, world.backend.heard = call, late
        disk = FailingDisk(step if call < 0 else 0, after=late)
        small = StagingPlan("", rows=limits, bytes=200, window_rows=3 * limits, window_bytes=600)
        killed = False
        try:
            world.run(0, rows, disk, small)
        except CrashError:
            killed = True
        staged = Staging(world.folder / "check" / "s" / "staging", "first").find(0) is not None
        world.backend.left = -1
        again = [(key, b"again" + (value or b"")) for key, value in rows]
        random.Random(seed).shuffle(again)
        world.run(0, again, limits=StagingPlan("", rows=11 - limits, window_rows=5))
        assert world.values() == Counter(rows if staged else again)
        assert killed or staged


@pytest.mark.slow
@FAST
@given(batches=st.lists(Rows, max_size=4), kills=st.lists(st.integers(0, 4), max_size=4))
def test_run_publishes_every_batch_once_when_each_is_killed_and_comes_back(
    batches: list[list[Row]], kills: list[int]
) -> None:
    with TemporaryDirectory() as folder:
        world = World(Path(folder), partitions=3)
        world.new_checkpoint("first")
        for number, rows in enumerate(batches):
            world.backend.left = kills[number] if number < len(kills) else -1
            world.backend.heard = True
            try:
                world.run(number, rows, limits=StagingPlan("", rows=2, window_rows=4))
            except CrashError:
                world.backend.left = -1
                world.run(number, rows)
            world.backend.left = -1
            world.run(number, rows)
        assert world.values() == sum((Counter(rows) for rows in batches), Counter())


@pytest.mark.slow
@given(rows=Rows, limit=st.integers(1, 9), room=st.integers(70, 400), partitions=st.integers(0, 5))
def test_chunks_keep_every_row_in_order_within_its_partition_and_its_limits(
    rows: list[Row], limit: int, room: int, partitions: int
) -> None:
    plan = StagingPlan("t", rows=limit, bytes=room, window_rows=2 * limit, window_bytes=3 * room)
    with TemporaryDirectory() as folder:
        staged = Staging(Path(folder) / "staging", "q").make(0, writing(rows, files=3), plan)
        found = list(chunks(staged, {"t": SinkTopic("persistent://p/d/t", partitions)}, 1000))
    numbers: dict[int, list[int]] = {}
    for chunk in found:
        assert len(chunk.messages) <= limit
        numbers.setdefault(chunk.partition, []).append(chunk.first)
        first = rows[chunk.first]
        assert (chunk.messages[0].key, chunk.messages[0].value) == (first[0], first[1] or b"")
    assert all(some == sorted(set(some)) for some in numbers.values())
    assert Counter(m.value for chunk in found for m in chunk.messages) == Counter(
        value or b"" for _, value in rows
    )
    by_key = {(key, chunk.partition) for chunk in found for _, key, *_ in chunk.messages if key}
    assert len(by_key) == len({key for key, _ in rows if key is not None})


def test_run_publishes_fresh_rows_when_the_checkpoint_was_deleted(world: World) -> None:
    world.run(0, [(None, b"first")])
    world.new_checkpoint("second")
    (world.folder / "check" / "s" / "staging" / "batch=0").rename(world.folder / "gone")
    world.run(0, [(None, b"second")])
    assert world.values() == Counter([(None, b"first"), (None, b"second")])


def test_run_refuses_when_only_spark_s_part_of_the_checkpoint_was_deleted(world: World) -> None:
    world.run(0, [(None, b"first")])
    world.new_checkpoint("second")
    with pytest.raises(PublishRefusedError, match="delete all of"):
        world.run(0, [(None, b"second")])


def test_run_keeps_the_partitions_of_the_first_time_when_the_topic_grew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(b"%d" % n, b"") for n in range(20)]
    world.backend.left, world.backend.heard = 1, True
    with pytest.raises(CrashError):
        world.run(0, rows, limits=StagingPlan("", rows=3))
    world.backend.left = -1
    monkeypatch.setattr(world.backend, "partitions", lambda topic, timeout: 7)
    world.run(0, rows)
    assert world.values() == Counter(rows)


def test_run_keeps_the_topic_of_the_first_time_when_the_declaration_names_another(
    world: World,
) -> None:
    world.backend.left, world.backend.heard = 1, True
    rows = [(None, b"%d" % n) for n in range(9)]
    with pytest.raises(CrashError):
        world.run(0, rows, limits=StagingPlan("", rows=3))
    world.backend.left, world.topic = -1, "elsewhere"
    world.run(0, rows)
    assert world.values() == Counter(rows)


def test_run_refuses_what_was_begun_when_the_pipeline_had_another_name(world: World) -> None:
    world.backend.left, world.backend.heard = 1, True
    rows: list[Row] = [(None, b"%d" % n) for n in range(9)]
    with pytest.raises(CrashError):
        world.run(0, rows, limits=StagingPlan("", rows=3))
    world.backend.left, world.pipeline = -1, "renamed"
    with pytest.raises(PublishRefusedError, match="published as router-pipeline-p-s already"):
        world.run(0, rows)
    world.pipeline = "p"
    world.run(0, rows)
    world.pipeline = "renamed"
    world.run(1, [(None, b"more")])
    assert world.values() == Counter([*rows, (None, b"more")])


def test_run_asks_the_store_nothing_when_the_batch_was_published(world: World) -> None:
    world.run(0, [(None, b"x")])
    before = world.backend.calls
    world.run(0, [(None, b"y")])
    assert world.backend.calls == before


def test_run_drops_the_staged_batch_when_the_next_one_begins(world: World) -> None:
    for number in range(3):
        world.run(number, [(None, b"x")])
    folder = world.folder / "check" / "s" / "staging"
    assert [path.name for path in folder.iterdir()] == ["batch=2"]


def test_tidy_drops_what_spark_committed_and_keeps_what_it_did_not(world: World) -> None:
    world.run(2, [(None, b"x")])
    tidy_sink(world.sink, world.context())
    folder = world.folder / "check" / "s"
    assert [path.name for path in (folder / "staging").iterdir()] == ["batch=2"]
    (folder / "commits").mkdir()
    (folder / "commits" / "2").touch()
    tidy_sink(world.sink, world.context())
    assert list((folder / "staging").iterdir()) == []


def test_run_waits_failures_out_when_they_may_pass(world: World) -> None:
    world.backend.failures = [BackendTimeoutError("late"), PublishRefusedError("full")]
    world.run(0, [(None, b"x")])
    assert world.values() == Counter([(None, b"x")])


def test_run_fails_with_a_sentence_when_the_store_stays_down(world: World) -> None:
    world.backend.failures = [BackendTimeoutError("It is late.")] * 99
    world.options["patience"] = "0s"
    with pytest.raises(PublishRefusedError) as failed:
        world.run(4, [(None, b"x")])
    sentence = (
        "Pipeline p, sink s (out): batch 4 could not be published: It is late. "
        "Nothing is lost: the next run goes on with it."
    )
    assert str(failed.value) == sentence
    assert world.told == [sentence]
    world.backend.failures = []
    world.run(4, [(None, b"never this")])
    assert world.values() == Counter([(None, b"x")])


def test_run_fails_at_once_when_the_topic_takes_no_more(world: World) -> None:
    world.backend.failures = [TopicTerminatedError("The topic is terminated.")]
    world.options["patience"] = "1h"
    with pytest.raises(PublishRefusedError, match="terminated"):
        world.run(0, [(None, b"x")])


def test_run_makes_a_batch_anew_when_a_message_was_too_large_and_nothing_is_published(
    world: World,
) -> None:
    world.flags["publish.max_message"] = "10"
    with pytest.raises(PublishRefusedError, match="a message of 13 bytes"):
        world.run(0, [(None, b"x"), (None, b"y" * 11)])
    assert world.values() == Counter()
    world.run(0, [(None, b"fits")])
    assert world.values() == Counter([(None, b"fits")])


def test_run_publishes_nothing_when_key_and_properties_make_a_message_too_large(
    world: World,
) -> None:
    world.flags["publish.max_message"] = "10"
    rows: list[Row] = [(None, b"x"), (b"k" * 5, b"y" * 5)]
    with pytest.raises(PublishRefusedError, match="a message of 12 bytes"):
        world.run(0, rows, limits=StagingPlan("", rows=1, window_rows=1))
    assert world.values() == Counter()
    world.run(0, [(b"k" * 4, b"y" * 4)])
    assert world.values() == Counter([(b"k" * 4, b"y" * 4)])


def test_run_goes_to_the_topic_declared_now_when_the_first_one_was_never_there(
    world: World,
) -> None:
    world.topic, world.flags["topics.auto_create"] = "ouch", "no"
    with pytest.raises(PublishRefusedError, match="ouch"):
        world.run(0, [(None, b"x")])
    world.topic = "out"
    world.run(0, [(None, b"x")])
    assert world.values() == Counter([(None, b"x")])


def test_run_publishes_properties_whose_bytes_are_no_text(world: World) -> None:
    def write(folder: Path) -> None:
        folder.mkdir()
        pairs = pa.array([[(b"a\xff", b"\xfe"), (b"b", None)]], pa.map_(pa.binary(), pa.binary()))
        offsets, keys, items = pairs.buffers()[1], pairs.keys, pairs.items
        texts = [pa.Array.from_buffers(pa.string(), 2, part.buffers()) for part in (keys, items)]
        starts = pa.Array.from_buffers(pa.int32(), 2, [None, offsets])
        columns = [
            pa.array([b"v"]),
            pa.array([None], pa.binary()),
            pa.MapArray.from_arrays(starts, *texts),
            pa.array([None], pa.int64()),
        ]
        table = pa.Table.from_arrays(columns, names=SCHEMA.names)
        pq.write_table(table, folder / "part-00000-x.snappy.parquet")
        (folder / "_SUCCESS").touch()

    TopicSink(world.sink, world.context()).run(0, write)
    assert [dict(message.properties) for message in world.stored()] == [{"a\ufffd": "\ufffd"}]


def test_run_syncs_what_spark_logged_before_it_stages_or_forgets(world: World) -> None:
    steps: list[tuple[str, str]] = []

    class Noting(StagingDisk):
        def sync(self, path: Path) -> None:
            steps.append(("sync", f"{path.parent.name}/{path.name}"))
            super().sync(path)

        def rename(self, old: Path, new: Path) -> None:
            steps.append(("rename", new.name.partition("-")[0]))
            super().rename(old, new)

    for batch in range(2):
        for log, number in (("offsets", batch), ("commits", batch - 1)):
            (world.folder / "check" / "s" / log).mkdir(exist_ok=True)
            if number >= 0:
                (world.folder / "check" / "s" / log / str(number)).touch()
        steps.clear()
        world.run(batch, [(None, b"x")], Noting())
    staged, forgotten = steps.index(("rename", "batch=1")), steps.index(("rename", "gone=0"))
    for path in ("offsets/1", "s/offsets", "commits/0", "s/commits"):
        assert steps.index(("sync", path)) < min(staged, forgotten)


def test_run_makes_the_topic_when_it_is_missing_and_may_be_made(world: World) -> None:
    world.topic = "new"
    world.run(0, [(None, b"x")])
    assert world.backend.describe_topic(TopicName.parse("new"), 1).partitions[0].messages == 1
    world.topic, world.flags["topics.auto_create"] = "newer", "no"
    with pytest.raises(PublishRefusedError, match="newer"):
        world.run(1, [(None, b"x")])


def test_run_refuses_a_batch_that_the_store_may_have_forgotten(world: World) -> None:
    world.backend.left, world.backend.heard = 1, True
    rows = [(None, b"%d" % n) for n in range(9)]
    with pytest.raises(CrashError):
        world.run(0, rows, limits=StagingPlan("", rows=3))
    world.backend.left = -1
    world.now_ms += 25 * 3_600_000
    with pytest.raises(PublishRefusedError, match=r"broken off 25\.0 hours ago"):
        world.run(0, rows)
    world.options["on_forgotten"] = "publish"
    world.run(0, rows)
    assert world.values() == Counter(rows)


def test_run_refuses_rows_for_what_the_source_reads_before_any_is_published(world: World) -> None:
    world.read = "out"
    with pytest.raises(PublishRefusedError, match="which the source reads"):
        world.run(0, [(b"k", b"v")])
    assert world.told
    assert not list(world.stored())
    # The rows are made anew when they are to go elsewhere.
    world.read = "in"
    world.run(0, [(b"k", b"other")])
    assert list(world.values()) == [(b"k", b"other")]
