"""Where a read begins and ends: options, the entries of a batch, and the rows of an entry."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.pulsar.extents import EntryPosition
from router.errors import SettingError
from router.pipelines.source.offsets import EARLIEST, LATEST, Bound, MessagePoint, Part
from router.pipelines.source.options import SourceOptions
from router.pipelines.source.ranges import (
    MAX_SHARED_TASKS,
    MIN_TASK_BYTES,
    MIN_TASK_MESSAGES,
    RANGE_MESSAGES,
    Range,
    shared_out,
)
from router.pipelines.source.reading import chosen, within
from router.pipelines.source_columns import Layout
from router.wire.nats.headers import SUBJECT
from router.wire.pulsar import Columns

ORDERS = "persistent://public/default/orders"


def test_offsets_are_by_topic_and_partition_as_kafkas_connector_has_them() -> None:
    told = {"orders": {"0": 12, "1": -2, "2": -1, "3": "7:5", "4": "7:5:2"}}
    options = SourceOptions.of_texts({"subscribe": "orders", "startingOffsets": json.dumps(told)})
    found = [options.starting.at(Part(ORDERS, partition)) for partition in range(6)]
    places = [MessagePoint(EntryPosition(7, 5), 0), MessagePoint(EntryPosition(7, 5), 2)]
    assert found == [12, EARLIEST, LATEST, *places, EARLIEST]
    # A topic without partitions shows its rows as those of partition 0.
    assert options.starting.at(Part(ORDERS, -1)) == 12


def test_what_ending_offsets_leave_out_ends_with_the_last_message() -> None:
    options = SourceOptions.of_texts({"topics": "orders", "endingOffsets": '{"orders": {"0": 5}}'})
    assert options.ending.at(Part(ORDERS, 0)) == 5
    assert options.ending.at(Part(ORDERS, 1)) == LATEST


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "{",
        "[]",
        '{"orders": 5}',
        '{"orders": {"first": 5}}',
        '{"orders": {"0": -3}}',
        '{"orders": {"0": true}}',
        '{"orders": {"0": "5"}}',
        '{"orders": {"0": "1:2:3:4"}}',
        '{"orders": {"0": "1:-2"}}',
    ],
)
def test_bad_bound_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(SettingError, match=r"starting"):
        SourceOptions.of_texts({"topics": "orders", "startingOffsets": text})


def test_read_cannot_end_at_its_earliest_message() -> None:
    with pytest.raises(SettingError, match="expected latest"):
        SourceOptions.of_texts({"topics": "orders", "ending": "earliest"})


def test_options_of_kafkas_connector_say_the_same() -> None:
    own = {
        "pattern": "orders.*",
        "starting": "17",
        "ending": "18",
        "max_rows": "5",
        "on_loss": "skip",
    }
    kafkas = {
        "subscribePattern": "orders.*",
        "startingTimestamp": "17",
        "endingTimestamp": "18",
        "maxOffsetsPerTrigger": "5",
        "failOnDataLoss": "false",
    }
    assert SourceOptions.of_texts(kafkas).texts() == own
    assert SourceOptions.of_texts({"subscribe": "a,b"}).topics == ("a", "b")


def test_words_of_kafkas_connector_have_no_case() -> None:
    options = SourceOptions.of_texts(
        {"startingOffsets": "Latest", "endingOffsets": "LATEST", "includeHeaders": "False"}
        | {"columns": "kafka", "failOnDataLoss": "False"}
    )
    assert (options.starting.word, options.ending.word) == (LATEST, LATEST)
    assert (options.layout, options.skip) == (Layout.KAFKA, True)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"topics": "a", "subscribe": "a"}, "say the same"),
        ({"subscribe": "a", "startingTimestamp": "noon"}, "ms since 1970"),
        ({"subscribe": "a", "startingOffsets": "17"}, "a time is startingTimestamp"),
        ({"subscribe": "a", "endingOffsets": "17"}, "a time is endingTimestamp"),
        ({"subscribe": "a", "failOnDataLoss": "perhaps"}, "true or false"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "h:1"}, r'format\("kafka"\)'),
        ({"subscribe": "a", "columns": "pulsar"}, "router or kafka"),
        ({"path": "a", "topics": "b"}, "either topics"),
        ({"path": "a", "pattern": "b"}, "either topics"),
        ({"paths": "{"}, "JSON list"),
    ],
)
def test_wrong_option_is_refused_in_a_sentence(texts: dict[str, str], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        SourceOptions.of_texts(texts).of_reading()


def test_argument_of_load_names_the_topics() -> None:
    assert SourceOptions.of_texts({"path": "orders"}).of_reading().topics == ("orders",)
    assert SourceOptions.of_texts({"path": "a, b"}).of_reading().topics == ("a", "b")
    assert SourceOptions.of_texts({"paths": '["a", "b"]'}).of_reading().topics == ("a", "b")


def test_options_that_spark_adds_itself_are_passed_over() -> None:
    told = {"checkpointLocation": "/tmp/c", "queryName": "q", "path": "orders"}
    options = SourceOptions.of_texts(told)
    assert options.topic == "orders"
    assert SourceOptions.of_texts({**told, "topic": "others"}).topic == "others"


def test_columns_are_those_of_kafkas_connector_on_request() -> None:
    kafkas = SourceOptions.of_texts({"columns": "kafka"}).layout
    assert kafkas is Layout.KAFKA_WITH_HEADERS
    assert "headers" in kafkas.value
    assert (
        SourceOptions.of_texts({"columns": "kafka", "includeHeaders": "false"}).layout
        is Layout.KAFKA
    )
    assert SourceOptions.of_texts({}).layout is Layout.ROUTER


def entry(messages: int) -> Columns:
    """An entry of a batch of so many messages; a single message if it is 0."""
    count = max(1, messages)
    places = list(range(messages)) if messages else [-1]
    values = [b"%d" % number for number in range(count)]
    return Columns(places, [None] * count, values, [{}] * count, [None] * count, 1, count)


BOUNDS = st.none() | st.integers(0, 12)


@given(messages=st.integers(0, 5), index=st.integers(0, 8), low=BOUNDS, high=BOUNDS)
def test_rows_of_an_entry_are_those_between_two_numbers(
    messages: int, index: int, low: int | None, high: int | None
) -> None:
    found = within(entry(messages), EntryPosition(1, 4), index, (low, high))
    kept = [
        number
        for number in range(max(1, messages))
        if (low is None or index + number >= low) and (high is None or index + number < high)
    ]
    assert found.values == [b"%d" % number for number in kept]
    assert len({len(column) for column in found[:5]}) == 1


@given(messages=st.integers(0, 5), low=st.integers(0, 6), high=st.integers(0, 6))
def test_rows_of_an_entry_are_those_between_two_positions(
    messages: int, low: int, high: int
) -> None:
    place = EntryPosition(3, 4)
    bounds = (MessagePoint(place, low), MessagePoint(place, high))
    found = within(entry(messages), place, None, bounds)
    assert found.values == [b"%d" % n for n in range(max(1, messages)) if low <= n < high]
    assert within(entry(messages), EntryPosition(3, 5), None, (bounds[0], None)) == entry(messages)
    assert not within(entry(messages), EntryPosition(3, 5), None, bounds).values


@pytest.mark.parametrize(
    ("key", "subject", "kept"),
    [
        (None, "", [b"0", b"1", b"2", b"3"]),
        (b"a", "", [b"0", b"2"]),
        (b"", "", [b"3"]),
        (None, "o.*", [b"0", b"1"]),
        (None, ">", [b"0", b"1", b"2"]),
        (b"a", "o.x", [b"0"]),
    ],
)
def test_rows_of_an_entry_are_those_of_a_key_and_a_subject(
    key: bytes | None, subject: str, kept: list[bytes]
) -> None:
    subjects = [{SUBJECT: "o.x"}, {SUBJECT: "o.y"}, {SUBJECT: "o.x.z"}, {}]
    keys = [b"a", None, b"a", b""]
    found = chosen(entry(4)._replace(keys=keys, properties=subjects), key, subject)
    assert found.values == kept
    assert len({len(column) for column in found[:5]}) == 1


def test_rows_without_numbers_are_kept_by_a_number() -> None:
    assert within(entry(3), EntryPosition(1, 1), None, (2, 3)) == entry(3)


def ranged(number: int, messages: int, size: int) -> Range:
    places = EntryPosition(number, 0), EntryPosition(number, 1), EntryPosition(number, 2)
    return Range(Part("t", number), *places, (), True, 0, messages, size)


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 2 * MIN_TASK_BYTES)), max_size=200))
def test_small_ranges_share_tasks_in_their_order(sizes: list[tuple[int, int]]) -> None:
    ranges = [ranged(number, *one) for number, one in enumerate(sizes)]
    tasks = list(shared_out(ranges))
    assert [one for task in tasks for one in task] == ranges
    weight = sum(m + RANGE_MESSAGES for m, _ in sizes)
    messages = max(MIN_TASK_MESSAGES, weight // MAX_SHARED_TASKS)
    octets = max(MIN_TASK_BYTES, sum(s for _, s in sizes) // MAX_SHARED_TASKS)
    for task in tasks:
        read = sum(one.messages + RANGE_MESSAGES for one in task)
        shared = len(task) == 1 or read <= messages
        assert shared
        assert len(task) == 1 or sum(one.size for one in task) <= octets
    # Two neighbours would not fit into one task.
    assert len(tasks) <= 4 * MAX_SHARED_TASKS + 1


def test_thousand_small_topics_make_few_tasks() -> None:
    assert len(list(shared_out(ranged(number, 3, 500) for number in range(1_000)))) == 4


def test_topics_that_are_read_in_milliseconds_share_tasks() -> None:
    tasks = list(shared_out(ranged(number, 1_000, 150_000) for number in range(100)))
    assert len(tasks) == 12


def test_bound_of_one_topic_leaves_others_alone() -> None:
    bound = Bound(EARLIEST, {Part("a", 0): 5})
    assert (bound.row_key(Part("a", 0)), bound.row_key(Part("b", 0))) == (5, None)
