"""Options of a source: from a declaration and from Spark's own, and Kafka's connector's."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from router.errors import BadNameError, SettingError
from router.pipelines.declaration import SourceSpec
from router.pipelines.source import row_names
from router.pipelines.source.kafka import connector_options
from router.pipelines.source.options import SECRET, SourceOptions
from router.pipelines.source.planning import matcher


def test_declared_source_says_the_same_as_its_options() -> None:
    spec = SourceSpec(
        url="embedded:/somewhere",
        topics=("a", "b"),
        starting="17",
        max_rows=5,
        on_loss="skip",
        key="",
        subject="orders.*",
        settings={"pulsar.token": "s3cret"},
    )
    options = SourceOptions.of_texts(SourceOptions.of_source(spec).texts())
    assert (options.kind, options.topics, options.starting.word) == (
        "embedded",
        ("a", "b"),
        "17",
    )
    assert (options.max_rows, options.skip) == (5, True)
    assert (options.key, options.subject) == (b"", "orders.*")
    assert options.settings.text("data.dir") == "/somewhere"
    assert options.settings.text("pulsar.token") == "s3cret"


@pytest.mark.parametrize("url", ["embedded", "pulsar://localhost:6650", "kafka://localhost:9092"])
def test_rows_name_a_topic_alike_however_it_was_named(url: str) -> None:
    given = ("orders", "persistent://public/default/orders", "persistent://t/n/orders")
    short, long, other = row_names(SourceSpec(url=url), given)
    assert short == long == "orders"
    assert other == ("t.n.orders" if url.startswith("kafka") else "persistent://t/n/orders")


def test_settings_travel_in_an_option_that_spark_takes_for_a_secret() -> None:
    told = SourceOptions.of_source(SourceSpec(settings={"pulsar.token": "s3cret"})).texts()
    assert [name for name, text in told.items() if "s3cret" in text] == [SECRET]
    assert "secret" in SECRET


@pytest.mark.parametrize(
    "texts",
    [
        {"url": "memory", "topics": "t"},
        {"topics": "t", "starting": "yesterday"},
        {"topics": "t", "max_rows": "-1"},
        {"topics": "t", "max_rows": "many"},
        {"topics": "t", "on_loss": "ignore"},
        {"topics": "t", "assign": '{"t": [0]}'},
        {"assign": '{"t": 0}'},
        {"assign": "t"},
        {"topics": "t", "startingOffsetsByTimestamp": '{"t": {"0": "noon"}}'},
        {"topics": "t", "startingOffsetsByTimestamp": "1790000000000"},
        {"topics": "t", "minPartitions": "few"},
        {"topics": "t", "colour": "red"},
        {"topics": "t", "subject": "a..b"},
        {"topics": "t", SECRET: "nothing"},
        {"topics": "t", SECRET: "[]"},
        {"topics": "t", SECRET: '{"colour": "red"}'},
    ],
)
def test_wrong_options_are_refused(texts: dict[str, str]) -> None:
    with pytest.raises(SettingError):
        SourceOptions.of_texts(texts)


@pytest.mark.parametrize("texts", [{}, {"topics": "t", "pattern": "t.*"}])
def test_source_needs_topics_or_a_pattern(texts: dict[str, str]) -> None:
    with pytest.raises(SettingError):
        SourceOptions.of_texts(texts).of_reading()


def test_bad_topic_name_is_refused() -> None:
    with pytest.raises(BadNameError):
        SourceOptions.of_texts({"topics": "not a topic"}).of_reading()


@pytest.mark.parametrize("name", ["orders", "persistent://other/space/orders"])
def test_shown_name_finds_its_topic(name: str) -> None:
    options = SourceOptions.of_texts({"topics": name})
    assert options.settings.shortest_name(options.settings.topic(name)) == name


def kafka(**texts: str) -> dict[str, str]:
    options = SourceOptions.of_texts({"url": "kafka://one:1,two:2", **texts})
    return connector_options(options.of_reading(), streaming=True)


def test_kafka_connector_is_told_what_the_source_says() -> None:
    told = kafka(topics="a,persistent://t/n/b", max_rows="9", on_loss="skip", starting="latest")
    assert told["kafka.bootstrap.servers"] == "one:1,two:2"
    assert told["subscribe"] == "a,t.n.b"
    assert (told["maxOffsetsPerTrigger"], told["failOnDataLoss"]) == ("9", "false")
    assert told["startingOffsets"] == "latest"
    assert told["kafka.isolation.level"] == "read_committed"


def test_kafka_connector_starts_at_a_time() -> None:
    told = kafka(topics="a", starting="1234")
    assert told["startingTimestamp"] == "1234"
    assert told["startingOffsetsByTimestampStrategy"] == "latest"
    assert "startingOffsets" not in told


def test_kafka_connector_does_not_read_the_routers_own_topics() -> None:
    assert kafka(pattern="a.*|b")["subscribePattern"] == "(?!__|_router_schemas$)(?:a.*|b)"


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("a.*", "a", True),
        ("a.*", "a.dlq", False),
        ("a.*", "a.dlq.dlq", False),
        ("a|b", "a.dlq", False),
        (r".*\.dlq", "a.dlq", True),
        (r".*\.dlq", "a.dlq.dlq", False),
        ("a.*", "a.dlqs", True),
        ("a.*", "a-dlq", True),
    ],
)
def test_pattern_passes_over_the_dead_letters_of_what_it_finds(
    pattern: str, name: str, found: bool
) -> None:
    source = SourceSpec(pattern=pattern, skip_dead=True)
    assert matcher(SourceOptions.of_source(source))(name) is found
    assert matcher(SourceOptions.of_source(replace(source, skip_dead=False)))(name) is (
        re.fullmatch(pattern, name) is not None
    )
    told = kafka(pattern=pattern, dead_letters="skip")["subscribePattern"]
    # What Java makes of it, of which these are no more than Python's own.
    assert (re.fullmatch(told, name) is not None) is found


def test_kafka_connector_gets_quoted_credentials(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    settings = {"kafka.sasl": "SCRAM-SHA-256", "kafka.username": "me", "kafka.password": 'a"\\b'}
    told = kafka(topics="a", **settings)
    assert told["kafka.security.protocol"] == "SASL_PLAINTEXT"
    assert told["kafka.sasl.jaas.config"].endswith('username="me" password="a\\"\\\\b";')
    ca.write_text("no certificate")
    with pytest.raises(SettingError):
        kafka(topics="a", **{"kafka.tls": "true", "kafka.ca": str(ca)})


def test_bad_pattern_is_refused() -> None:
    with pytest.raises(SettingError):
        kafka(pattern="(")
