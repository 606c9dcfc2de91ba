"""Topics of Kafka by Spark's own connector, configured from the router's settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from router.backends.kafka import KafkaConnectionOptions
from router.backends.kafka.names import INTERNAL, Names
from router.errors import SettingError
from router.pipelines.declaration import DEAD_SUFFIX, compiled_pattern
from router.pipelines.source.offsets import EARLIEST
from router.pipelines.source.options import SourceOptions
from router.pipelines.source_columns import from_kafka
from router.wire.nats.headers import SUBJECT

_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def kafka_frame(spark: SparkSession, options: SourceOptions, *, streaming: bool) -> DataFrame:
    """Return the messages of Kafka's topics in the columns of every source.

    Only what was committed is read. Raises SettingError. Without the connector's jars on Spark's
    class path, Spark raises AnalysisException.
    """
    reader = spark.readStream if streaming else spark.read
    spark_options = connector_options(options.of_reading(), streaming=streaming)
    rows = from_kafka(reader.format("kafka").options(**spark_options).load())
    if options.key is not None:
        rows = rows.where(f.col("key") == f.lit(options.key))
    if options.subject:
        rows = rows.where(f.col("properties")[SUBJECT].rlike(_as_expression(options.subject)))
    return rows


def _as_expression(subject: str) -> str:
    """Return the regular expression of a pattern of subjects."""
    tokens = {"*": "[^.]+", ">": ".+"}
    parts = [tokens.get(token) or re.escape(token) for token in subject.split(".")]
    return "^" + r"\.".join(parts) + "$"


def connector_options(options: SourceOptions, *, streaming: bool) -> dict[str, str]:
    """Return the connector's options for a source; raise SettingError, BadNameError."""
    spark_options = {
        "includeHeaders": "true",
        "failOnDataLoss": "false" if options.skip else "true",
        "kafka.isolation.level": "read_committed",
        "groupIdPrefix": "router-pipeline",
        **access_options(options),
        **_topics(options),
    }
    word = options.starting.word
    if word.isdigit():
        spark_options["startingTimestamp"] = word
        spark_options["startingOffsetsByTimestampStrategy"] = "latest"
    elif streaming or word == EARLIEST:
        spark_options["startingOffsets"] = word
    else:
        raise SettingError("a batch that starts at the latest message has none")
    if streaming and options.max_rows:
        spark_options["maxOffsetsPerTrigger"] = str(options.max_rows)
    return spark_options


def access_options(options: SourceOptions) -> dict[str, str]:
    """Return where Kafka is and how Spark shows itself to it; raise SettingError."""
    settings = options.settings
    access = KafkaConnectionOptions.parse(settings.text("backend.url"), settings)
    sasl, tls = access.mechanism != "none", access.tls is not None
    protocol = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")
    spark_options = {
        "kafka.bootstrap.servers": ",".join(f"{host}:{port}" for host, port in access.hosts),
        "kafka.security.protocol": protocol,
    }
    if sasl:
        user, password = _quoted(access.username), _quoted(access.password)
        module = _MODULES[access.mechanism]
        spark_options["kafka.sasl.mechanism"] = access.mechanism
        spark_options["kafka.sasl.jaas.config"] = (
            f"{module} required username={user} password={password};"
        )
    if tls:
        spark_options |= _tls(
            settings.text("kafka.ca"), settings.text("kafka.cert"), settings.text("kafka.key")
        )
    return spark_options


def names(options: SourceOptions) -> Names:
    """Return how topics are called in Kafka, by the settings of a source."""
    settings = options.settings
    return Names(settings.text("names.tenant"), settings.text("names.namespace"), "{group}")


def _topics(options: SourceOptions) -> dict[str, str]:
    if options.topics:
        found = (names(options).topic(options.settings.topic(name)) for name in options.topics)
        return {"subscribe": ",".join(found)}
    try:
        compiled_pattern(options.pattern)
    except ValueError as error:
        raise SettingError(f"pattern = {options.pattern!r}: {error}") from error
    # What RE2 knows Java does too.
    matched, dead = f"(?:{options.pattern})", re.escape(DEAD_SUFFIX)
    ours = f"(?!{matched}{dead}$)" if options.skip_dead else ""
    return {"subscribePattern": f"(?!{INTERNAL}){ours}{matched}"}


def _tls(ca: str, cert: str, key: str) -> dict[str, str]:
    """Return how TLS is spoken; what files hold goes along: Spark's workers may have none."""
    spark_options: dict[str, str] = {}
    try:
        if ca:
            spark_options["kafka.ssl.truststore.type"] = "PEM"
            spark_options["kafka.ssl.truststore.certificates"] = Path(ca).read_text(
                encoding="ascii"
            )
        if cert:
            spark_options["kafka.ssl.keystore.type"] = "PEM"
            spark_options["kafka.ssl.keystore.certificate.chain"] = Path(cert).read_text(
                encoding="ascii"
            )
            spark_options["kafka.ssl.keystore.key"] = Path(key or cert).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"kafka.ca, kafka.cert or kafka.key cannot be used: {error}") from error
    return spark_options


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
