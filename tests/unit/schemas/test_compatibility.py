"""Which schemas may follow one another, with what fastavro can read as the oracle."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from router.errors import IncompatibleSchemaError
from router.model import Schema, SchemaType
from router.schemas import Strategy, check_consumer, check_follows, encode, pair_schema, place
from tests.unit.schemas.generated import definitions, plain, records, values

INT = {"name": "n", "type": "int"}
TEXT = {"name": "t", "type": "string"}
OPTIONAL = {**TEXT, "default": ""}

BACKWARD = {Strategy.BACKWARD, Strategy.BACKWARD_TRANSITIVE}
FORWARD = {Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE}
FULL = {Strategy.FULL, Strategy.FULL_TRANSITIVE}
ALWAYS = {Strategy.ALWAYS_COMPATIBLE}
TRANSITIVE = {strategy for strategy in Strategy if strategy.transitive}


def avro(definition: Any, schema_type: SchemaType = SchemaType.AVRO) -> Schema:
    return Schema(schema_type, json.dumps(definition).encode())


def record(*fields: dict[str, Any], name: str = "R") -> Schema:
    return avro({"type": "record", "name": name, "fields": fields})


def allowed(known: list[Schema], schema: Schema) -> set[Strategy]:
    found = set()
    for strategy in Strategy:
        try:
            check_follows(known, schema, strategy)
        except IncompatibleSchemaError:
            continue
        found.add(strategy)
    return found


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (record(INT), record(INT), set(Strategy)),
        (record(INT), record(INT, OPTIONAL), ALWAYS | BACKWARD | FORWARD | FULL),
        (record(INT), record(INT, TEXT), ALWAYS | FORWARD),
        (record(INT, TEXT), record(INT), ALWAYS | BACKWARD),
        (record(INT), record({"name": "n", "type": "long"}), ALWAYS | BACKWARD),
        (record(INT), record({"name": "n", "type": "string"}), ALWAYS),
        (record(INT), record({"name": "m", "type": "int", "aliases": ["n"]}), ALWAYS | BACKWARD),
        # Apache Pulsar 4.2.4 lets a record change its name under every strategy
        (record(INT), record(INT, name="S"), ALWAYS | BACKWARD | FORWARD | FULL),
        (record(INT), avro(json.loads(record(INT).data), SchemaType.JSON), ALWAYS),
        (record(INT), Schema(SchemaType.STRING), ALWAYS),
        (Schema(SchemaType.INT32), Schema(SchemaType.INT64), ALWAYS),
        (Schema(SchemaType.INT32), Schema(SchemaType.INT32, b"null"), set(Strategy)),
        (
            Schema(SchemaType.PROTOBUF, b"a"),
            Schema(SchemaType.PROTOBUF, b"b"),
            set(Strategy) - {Strategy.ALWAYS_INCOMPATIBLE},
        ),
    ],
)
def test_strategies_are_those_of_pulsar(old: Schema, new: Schema, wanted: set[Strategy]) -> None:
    assert allowed([old], new) == wanted


def test_transitive_strategies_look_at_all() -> None:
    without = {"name": "t", "type": "int", "default": 0}
    history = [record(INT, without), record(INT)]
    assert allowed(history, record(INT, OPTIONAL)) == set(Strategy) - TRANSITIVE - {
        Strategy.ALWAYS_INCOMPATIBLE
    }


def test_pairs_are_compared_part_by_part() -> None:
    text = Schema(SchemaType.STRING)
    old = pair_schema(record(INT), text, separated=True)
    assert allowed([old], pair_schema(record(INT, TEXT), text, separated=True)) == ALWAYS | FORWARD
    assert allowed([old], pair_schema(record(INT), record(), separated=True)) == ALWAYS
    assert allowed([pair_schema(text, record(INT), separated=False)], old) == ALWAYS


def test_documents_of_old_clients_may_be_replaced() -> None:
    def document(name: str, **more: Any) -> Schema:
        return avro({"type": "object", "id": name, **more}, SchemaType.JSON)

    modern = avro({"type": "record", "name": "R", "fields": []}, SchemaType.JSON)
    most = set(Strategy) - {Strategy.ALWAYS_INCOMPATIBLE}
    assert allowed([document("a")], modern) == most
    assert allowed([modern], document("a")) == most
    assert allowed([document("a")], document("a", properties={})) == most
    assert allowed([document("a")], document("b")) == ALWAYS


def test_place_is_that_of_the_equal_one_or_the_next() -> None:
    known = [record(INT), record(INT, OPTIONAL)]
    assert place([], record(INT), Strategy.ALWAYS_INCOMPATIBLE) == 0
    assert place(known, record(INT), Strategy.ALWAYS_INCOMPATIBLE) == 0
    assert place(known, record(), Strategy.BACKWARD) == 2
    with pytest.raises(IncompatibleSchemaError):
        place(known, record(INT, TEXT, {"name": "x", "type": "int"}), Strategy.BACKWARD)


def test_consumers_read_the_newest_or_all_where_that_is_asked() -> None:
    known = [record(), record(INT)]
    for strategy in Strategy:
        if strategy in {Strategy.ALWAYS_COMPATIBLE, Strategy.FORWARD, Strategy.FULL} | (
            BACKWARD - TRANSITIVE
        ) | {Strategy.FORWARD_TRANSITIVE}:
            check_consumer(known, record(INT), strategy)
        elif strategy is not Strategy.ALWAYS_INCOMPATIBLE:
            with pytest.raises(IncompatibleSchemaError):
                check_consumer(known, record(INT), strategy)


# What is called compatible is read by another implementation.


@st.composite
def successors(draw: st.DrawFn) -> tuple[Any, Any]:
    """A record and one that a program's next release may have made of it."""
    old = draw(records)
    new = copy.deepcopy(old)
    fields = [field for field in new["fields"] if draw(st.booleans())]
    for field in fields:
        wider = {"int": "long", "long": "double", "string": "bytes", "float": "double"}
        if isinstance(field["type"], str) and draw(st.booleans()):
            field["type"] = wider.get(field["type"], field["type"])
        elif not isinstance(field["type"], list) and draw(st.booleans()):
            field["type"] = [field["type"]]
    if draw(st.booleans()):
        fields.append(
            {"name": "more", "type": "int", **draw(st.sampled_from([{}, {"default": 1}]))}
        )
    new["fields"] = draw(st.permutations(fields))
    return old, new


def read_by(reader: Any, writer: Any, value: Any) -> Any:
    data = io.BytesIO(encode(avro(writer), value))
    return fastavro.schemaless_reader(data, copy.deepcopy(writer), copy.deepcopy(reader))


def as_bytes(value: Any) -> Any:
    """Return a value with its texts as bytes: a reader's union may have those first."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [as_bytes(item) for item in value]
    if isinstance(value, dict):
        return {key: as_bytes(item) for key, item in value.items()}
    return value


@settings(max_examples=40)
@given(successors(), st.data())
def test_what_follows_backward_reads_what_was_written(
    pair: tuple[Any, Any], data: st.DataObject
) -> None:
    old, new = pair
    try:
        check_follows([avro(old)], avro(new), Strategy.BACKWARD)
    except IncompatibleSchemaError:
        assert any(f["name"] == "more" and "default" not in f for f in new["fields"])
        return
    value = data.draw(values(old))
    found = read_by(new, old, value)
    kept = {field["name"] for field in new["fields"]} - {"more"}
    assert found.keys() == {field["name"] for field in new["fields"]}
    same = {f["name"] for f in old["fields"] if f in new["fields"]}
    assert as_bytes({name: found[name] for name in kept & same}) == as_bytes(
        {name: value for name, value in plain(old, value).items() if name in kept & same}
    )


@pytest.mark.slow
@given(definitions, definitions, st.data())
def test_unlike_definitions_that_are_compatible_are_read(
    old: Any, new: Any, data: st.DataObject
) -> None:
    assume(not isinstance(old, list))
    try:
        check_follows([avro(old)], avro(new), Strategy.BACKWARD)
    except IncompatibleSchemaError:
        return
    read_by(new, old, data.draw(values(old)))


# What may be sent by somebody who means no good.


def chain(length: int, *, hidden: str) -> Schema:
    """Records, each with a field of the one before; what compares them begins with the last."""
    types: list[Any] = [{"type": "record", "name": "R0", "fields": []}]
    for number in range(1, length):
        fields = [{"name": "f", "type": f"R{number - 1}"}]
        types.append({"type": "record", "name": f"R{number}", "fields": fields})
    hiding: list[dict[str, Any]] = [
        {"name": hidden + str(begin), "type": types[begin : begin + 200], "default": None}
        for begin in range(0, length, 200)
    ]
    return record(*hiding, {"name": "z", "type": f"R{length - 1}"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (chain(700, hidden="a"), chain(700, hidden="b")),
        (
            record(
                {
                    "name": "n",
                    "type": [{"type": "record", "name": f"A{n}", "fields": []} for n in range(200)],
                },
                *({"name": f"x{i}", "type": [f"A{n}" for n in range(200)]} for i in range(20)),
            ),
            record(
                {
                    "name": "n",
                    "type": [
                        {"type": "record", "name": f"A{n}", "fields": []}
                        for n in reversed(range(200))
                    ],
                },
                *(
                    {"name": f"x{i}", "type": [f"A{n}" for n in reversed(range(200))]}
                    for i in range(20)
                ),
            ),
        ),
        (record(INT), record({"name": "m", "type": "int", "aliases": [{}]})),
    ],
)
def test_definitions_that_cannot_be_compared_are_incompatible(old: Schema, new: Schema) -> None:
    with pytest.raises(IncompatibleSchemaError, match="compared"):
        place([old], new, Strategy.BACKWARD)
