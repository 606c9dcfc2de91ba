"""From messages to rows: good ones in the columns of their format, bad ones as they came.

Theory of operation. A format adds two columns to the source's: `_error`, a sentence or null, and
`_rows`, what the value says. Every message is in exactly one of the two frames that `decode`
returns, and in the same one whenever it is read again, because the split depends on nothing but the
message: no clock, no place, no other message. Text, JSON and CSV are read by Spark itself, on the
JVM; cambria, Avro and Protobuf by Python workers (`decoding`, `protobuf_records`).

Spark's own parsers have modes for bad records that were not taken: DROPMALFORMED loses them, and
FAILFAST says which row it was only in a stack trace.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from router.pipelines.declaration import DEAD_SUFFIX, METADATA, RECORDS, REGISTERED, SourceSpec
from router.pipelines.decoding import (
    NO_TEXT,
    AvroDecoder,
    avro_columns,
    decode_cambria,
)
from router.pipelines.protobuf_records import ProtobufDecoder, protobuf_columns
from router.pipelines.versioned import NO_VALUE, Decoded, VersionedDecoder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS: Final = tuple(name[1:] for name in METADATA)
COUNTS: Final = "router_counts"
BAD_RECORD: Final = "bad record: "
PROPERTY: Final = "router-"
_CORRUPT: Final = "_router_corrupt"
_MAX_SHOWN_CHARACTERS: Final = 300
_QUOTES: Final = re.compile("[\"'`\\\\]")
_CAMBRIA: Final = "`key`: STRING, `value`: STRING"
# Numbers such as NaN are no JSON, and a corrupt record is marked, never dropped.
_JSON: Final = {"allowNonNumericNumbers": "false"}
_MARKED: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}


def decode(
    frame: DataFrame,
    spec: SourceSpec,
    problem: Callable[[Column, Column], Column] | None = None,
    *,
    name: str = RECORDS,
    fail: bool = False,
) -> tuple[DataFrame, DataFrame]:
    """Split the source's rows: the good, decoded, and the bad, untouched beside their `error`.

    Good rows have the format's columns and those of METADATA; one message of cambria may become
    several. `spec.schema` must be there where the format needs one (`schemas.resolved`). `problem`
    says of topic and value what else is wrong. Spark counts both under COUNTS and the `name` of the
    source. With `fail` the good end with the first bad one.
    """
    f = _functions()
    parsed = _PARSERS[spec.format](frame, spec)
    if problem is not None:
        more = f.coalesce(f.col("_error"), problem(f.col("topic"), f.col("value")))
        parsed = parsed.withColumn("_error", more)
    counted = parsed.observe(
        f"{COUNTS}_{name}", f.count(f.lit(1)).alias("rows"), f.count("_error").alias("bad")
    )
    bad = counted.where("_error IS NOT NULL").selectExpr(*_quoted(), "_error AS error")
    good = counted.where(_or_fail() if fail else f.col("_error").isNull())
    if spec.format in _SEVERAL:
        good = good.withColumn("_rows", f.explode("_rows"))
    known = [f"`{name}` AS `_{name}`" for name in COLUMNS]
    fields = ["`value`"] if spec.format == "bytes" else ["_rows.*"]
    return good.selectExpr(*fields, *known), bad


def dead_letters(bad: DataFrame, topic: str, pipeline: str) -> DataFrame:
    """Return bad records as a topic takes them: original bytes, and in properties what was wrong.

    Each goes to `topic`, empty: to `<topic>.dlq` of its own. `pipeline` is the name of the one that
    found them bad.
    """
    f = _functions()
    known = {name: f.col(name) for name in ("error", "topic", "partition", "position")}
    known |= {"pipeline": f.lit(pipeline), "publish-time": f.unix_millis("publish_time")}
    notes = [
        part
        for name, column in known.items()
        for part in (f.lit(f"{PROPERTY}{name}"), column.cast("string"))
    ]
    to = f.lit(topic) if topic else f.concat(f.col("topic"), f.lit(DEAD_SUFFIX))
    return bad.select(
        to.alias("topic"),
        "key",
        "value",
        f.map_concat(f.coalesce("properties", f.create_map()), f.create_map(*notes)).alias(
            "properties"
        ),
        "event_time",
    )


def _quoted() -> list[str]:
    return [f"`{name}`" for name in COLUMNS]


def _or_fail() -> Column:
    """Return the condition that is true for good rows, and ends the query at a bad one."""
    f = _functions()
    where = [f.col("topic"), f.col("partition").cast("string"), f.col("position"), f.col("_error")]
    sentence = f.format_string("%s (topic %s, partition %s, position %s)", *[where[3], *where[:3]])
    marked = f.concat(f.lit(BAD_RECORD), sentence)
    failing: Column = f.when(f.col("_error").isNull(), f.lit(True)).otherwise(
        f.raise_error(marked).cast("boolean")
    )
    return failing


def _functions() -> Any:
    from pyspark.sql import functions  # noqa: PLC0415 - an extra, which declarations do without

    return functions


def _bytes(frame: DataFrame, _spec: SourceSpec) -> DataFrame:
    f = _functions()
    return frame.withColumn("_error", f.lit(None).cast("string"))


def _text(frame: DataFrame, _spec: SourceSpec) -> DataFrame:
    f = _functions()
    text = f.col("value").cast("string")
    return frame.withColumn("_error", _no_text()).withColumn("_rows", f.struct(text.alias("value")))


def _no_text() -> Column:
    """Return what is wrong with a value that should be text; null where nothing is."""
    f = _functions()
    valid = f.is_valid_utf8(f.col("value").cast("string"))
    missing = f.when(f.col("value").isNull(), f.lit(NO_VALUE))
    found: Column = missing.when(~valid, f.lit(NO_TEXT)).otherwise(f.lit(None).cast("string"))
    return found


def _json(frame: DataFrame, spec: SourceSpec) -> DataFrame:
    f = _functions()
    text = f.col("value").cast("string")
    rows = f.from_json(text, _with_corrupt(spec.schema), {**_JSON, **spec.options, **_MARKED})
    # Spark's reader of objects does not look at what stands behind the first one; its reader of
    # whole documents does, and an array around it shows when there are two.
    whole = f.try_parse_json(f.concat(f.lit("["), text, f.lit("]")))
    second = f.try_variant_get(whole, "$[1]", "variant")
    unfit = _unfit(spec)
    wrong = (
        f.when(~text.rlike(r"^\s*\{"), f.lit("the value is no JSON object"))
        .when(whole.isNull() | second.isNotNull(), f.lit("the value is not one JSON object"))
        .when(f.col("_rows").isNull() | f.col(f"_rows.{_CORRUPT}").isNotNull(), unfit)
    )
    return _marked(frame.withColumn("_rows", rows), wrong)


def _csv(frame: DataFrame, spec: SourceSpec) -> DataFrame:
    f = _functions()
    text = f.rtrim(f.col("value").cast("string"), f.lit("\r\n"))
    rows = f.from_csv(text, _with_corrupt(spec.schema), {**spec.options, **_MARKED})
    unfit = f.lit(_unfit_text("line", spec))
    wrong = (
        f.when(text == "", f.lit("the line is empty"))
        .when(text.rlike(r"[\r\n]"), f.lit("a message of CSV is one line"))
        .when(f.col("_rows").isNull() | f.col(f"_rows.{_CORRUPT}").isNotNull(), unfit)
    )
    return _marked(frame.withColumn("_rows", rows), wrong)


def _marked(frame: DataFrame, wrong: Column) -> DataFrame:
    """Add the sentence, and take the mark of corrupt records away again."""
    f = _functions()
    with_error = frame.withColumn("_error", f.coalesce(_no_text(), wrong))
    return with_error.withColumn("_rows", f.col("_rows").dropFields(_CORRUPT))


def _unfit(spec: SourceSpec) -> Column:
    """Return what does not fit of a JSON object: the first field that is given and not read."""
    from router.pipelines.declared_columns import columns  # noqa: PLC0415 - sqlglot is of the extra

    f = _functions()
    document = "try_parse_json(concat('[', CAST(value AS STRING), ']'))"
    cases = []
    for name, kind in (columns(spec) or {}).items():
        if name in METADATA or _QUOTES.search(name):
            continue
        given = f"try_variant_get({document}, '$[0][\"{name}\"]', 'variant')"
        reason = f"the field {name} does not fit {_shown(kind)}".replace("'", "")
        cases.append(
            f"CASE WHEN _rows.`{name}` IS NULL AND NOT is_variant_null({given}) THEN '{reason}' END"
        )
    whole = f.lit(_unfit_text("JSON", spec))
    found: Column = f.coalesce(*([f.expr(f"coalesce({', '.join(cases)})")] if cases else []), whole)
    return found


def _unfit_text(what: str, spec: SourceSpec) -> str:
    return f"the {what} does not fit the columns {_shown(spec.schema)}"


def _with_corrupt(schema: str) -> str:
    # On a line of its own: a comment may end the schema.
    return f"{schema}\n, `{_CORRUPT}` STRING"


def _shown(schema: str) -> str:
    flat = re.sub(r"\s+", " ", schema)
    return flat if len(flat) <= _MAX_SHOWN_CHARACTERS else f"{flat[:_MAX_SHOWN_CHARACTERS]}..."


def _cambria(frame: DataFrame, _spec: SourceSpec) -> DataFrame:
    return _by_python(frame, decode_cambria, _CAMBRIA, "value")


def _avro(frame: DataFrame, spec: SourceSpec) -> DataFrame:
    return _by_version(frame, spec, AvroDecoder, avro_columns(spec.schema))


def _protobuf(frame: DataFrame, spec: SourceSpec) -> DataFrame:
    return _by_version(frame, spec, ProtobufDecoder, protobuf_columns(spec.schema))


def _by_version(
    frame: DataFrame, spec: SourceSpec, kind: type[VersionedDecoder], columns: dict[str, str]
) -> DataFrame:
    from router.pipelines.source.versions import TopicSchemaVersions  # noqa: PLC0415 - it imports Spark's

    fields = ", ".join(f"`{name}`: {kind}" for name, kind in columns.items())
    decoder = kind(spec.schema, TopicSchemaVersions.of_source(spec))
    return _by_python(frame, decoder.__call__, fields, "value", "topic", "schema_version")


def _by_python(
    frame: DataFrame, decoder: Callable[..., Decoded], fields: str, *columns: str
) -> DataFrame:
    f = _functions()
    kind = f"error STRING, rows ARRAY<STRUCT<{fields}>>"
    decoded = f.udf(decoder, kind, useArrow=True)(*map(f.col, columns))
    whole = frame.withColumn("_decoded", decoded)
    return whole.selectExpr(*COLUMNS, "_decoded.error AS _error", "_decoded.rows AS _rows")


_PARSERS: Final[dict[str, Callable[[DataFrame, SourceSpec], DataFrame]]] = {
    "bytes": _bytes,
    "text": _text,
    "json": _json,
    "csv": _csv,
    "cambria": _cambria,
    "avro": _avro,
    "protobuf": _protobuf,
}
_SEVERAL: Final = {"cambria", *REGISTERED}
