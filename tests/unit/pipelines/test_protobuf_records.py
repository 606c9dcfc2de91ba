"""Protobuf messages in columns: by the version that they were written with, or bad by a field."""

from __future__ import annotations

import base64
import json
import time
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidSchemaError, SchemaNotFoundError
from router.model import Schema, SchemaType
from router.pipelines.protobuf_records import ProtobufDecoder, protobuf_columns
from router.pipelines.versioned import MAX_SENTENCE_CHARACTERS
from tests.pipelines.protobuf_types import CompiledType, compiled

ORDER = compiled(
    """
    import "google/protobuf/timestamp.proto";
    enum State { NEW = 0; PAID = 1; }
    message Nothing {}
    message Item { string name = 1; sint32 count = 2; optional float price = 3; }
    message Order {
      int64 id = 1;
      optional string note = 2;
      repeated Item items = 3;
      map<string, State> states = 4;
      oneof payer { string card = 5; Item goods = 6; }
      uint64 large = 7;
      fixed32 small = 8;
      bytes raw = 9;
      State state = 10;
      repeated sfixed64 numbers = 11;
      google.protobuf.Timestamp at = 12;
      Nothing nothing = 13;
      map<int32, Item> parts = 14;
      bool gone = 15;
      double rate = 16;
    }
    """
)
EMPTY: tuple[Any, ...] = (
    0,
    None,
    [],
    {},
    None,
    None,
    Decimal(0),
    0,
    b"",
    "NEW",
    [],
    None,
    {},
    False,
    0.0,
)


def decoded(written: CompiledType, value: bytes, columns: CompiledType | None = None) -> Any:
    """Return the row of a value of one type in the columns of another, or its error."""
    decoder = ProtobufDecoder((columns or written).definition, lambda *_: written.schema)
    error, rows = decoder(value, "orders", 3)
    assert (error is None) != (rows is None)
    return error if rows is None else rows[0]


def test_fields_are_columns_of_their_types() -> None:
    item = "STRUCT<`name`: STRING, `count`: INT, `price`: FLOAT>"
    assert protobuf_columns(ORDER.definition) == {
        "id": "BIGINT",
        "note": "STRING",
        "items": f"ARRAY<{item}>",
        "states": "MAP<STRING, STRING>",
        "card": "STRING",
        "goods": item,
        "large": "DECIMAL(20, 0)",
        "small": "BIGINT",
        "raw": "BINARY",
        "state": "STRING",
        "numbers": "ARRAY<BIGINT>",
        "at": "STRUCT<`seconds`: BIGINT, `nanos`: INT>",
        "parts": f"MAP<INT, {item}>",
        "gone": "BOOLEAN",
        "rate": "DOUBLE",
    }


def test_values_come_back() -> None:
    made = ORDER.make(id=-5, note="", large=2**64 - 1, small=2**32 - 1, raw=b"\xff", state="PAID")
    made.items.add(name="tea", count=-2)
    made.items.add(price=1.5)
    made.states["a"] = 1
    made.goods.name = "pot"
    made.numbers.extend([1, -(2**63)])
    made.at.seconds = 7
    made.parts[3].count = 9
    made.gone, made.rate = True, 0.25
    assert decoded(ORDER, made.SerializeToString()) == (
        *(-5, "", [("tea", -2, None), ("", 0, 1.5)], {"a": "PAID"}, None, ("pot", 0, None)),
        *(Decimal(2**64 - 1), 2**32 - 1, b"\xff", "PAID", [1, -(2**63)], (7, 0)),
        *({3: ("", 9, None)}, True, 0.25),
    )


def test_fields_that_are_not_there_are_null_or_what_protobuf_has_for_them() -> None:
    assert decoded(ORDER, b"") == EMPTY
    assert ProtobufDecoder(ORDER.definition)(None) == ("the message has no value", None)
    old = compiled(
        """
        message Order {
          required int32 id = 1;
          optional int32 more = 2 [default = 7];
          optional int32 less = 3;
        }
        """,
        syntax="proto2",
    )
    assert decoded(old, b"\x08\x01") == (1, 7, None)
    assert decoded(old, b"") == "the field id is missing, which is required"
    # What a version did not have yet is what a message without it has.
    assert decoded(compiled("message Order { int32 id = 1; }"), b"", old) == (0, 7, None)
    assert decoded(compiled("message Order { int64 x = 1; }"), b"", ORDER) == EMPTY


def test_fields_of_types_without_fields_are_no_columns_however_deep_they_are() -> None:
    kind = compiled(
        """
        message Nothing {}
        message Box { Nothing nothing = 1; map<string, Nothing> named = 2; }
        message Item { Box box = 1; int32 count = 2; }
        message Order { int64 id = 1; Box box = 2; repeated Box boxes = 3;
          map<string, Nothing> marks = 4; map<string, Box> crates = 5; Item item = 6; }
        """
    )
    assert protobuf_columns(kind.definition) == {"id": "BIGINT", "item": "STRUCT<`count`: INT>"}
    made = kind.make(id=3)
    made.marks["a"].SetInParent()
    made.boxes.add()
    made.item.count = 4
    assert decoded(kind, made.SerializeToString()) == (3, (4,))


def test_record_is_read_by_the_version_that_it_was_written_with() -> None:
    columns = compiled(
        """
        message Order { int64 id = 1; string who = 2; double total = 3; bytes note = 5;
          uint64 sum = 6; }
        """
    )
    # The field 2 has another name, 3 and 5 have narrower types, and the columns have no 4.
    written = compiled(
        """
        enum State { NEW = 0; LOST = 4; }
        message Order { int32 number = 1; State state = 2; float total = 3; string gone = 4;
          string note = 5; uint32 sum = 6; }
        """
    )
    value = written.make(number=-1, state=4, total=1.5, gone="x", note="y", sum=3)
    row = decoded(written, value.SerializeToString(), columns)
    assert row == (-1, "LOST", 1.5, b"y", Decimal(3))


def test_version_of_one_topic_is_not_that_of_another() -> None:
    columns = compiled("message Order { int64 id = 1; string who = 2; }")
    other = compiled("message Order { string text = 2; int32 number = 1; }")
    swapped = compiled("message Order { bool id = 1; string who = 2; }")
    schemas = {"a": columns.schema, "b": other.schema, "c": swapped.schema}
    asked: list[str] = []

    def lookup(topic: str, version: int) -> Schema:
        assert version == 3
        asked.append(topic)
        return schemas[topic]

    decoder = ProtobufDecoder(columns.definition, lookup)
    value = b"\x08\x01\x12\x01x"
    for topic in ("a", "b", "a", "b"):
        assert decoder(value, topic, 3) == (None, [(1, "x")])
    refused = "version 3 of the schema of c: the field id is BOOLEAN, and BIGINT in the columns"
    assert [decoder(value, "c", 3), decoder(value, "c", 3)] == [(refused, None)] * 2
    # What reads a version is made once.
    assert asked == ["a", "b", "c"]


def test_keys_of_maps_and_smaller_numbers_have_the_types_of_the_columns() -> None:
    columns = compiled("message Order { map<uint64, double> rates = 1; uint64 sum = 2; }")
    written = compiled("message Order { map<uint32, float> rates = 1; int32 sum = 2; }")
    made = written.make(rates={7: 0.5}, sum=8)
    rates, total = decoded(written, made.SerializeToString(), columns)
    assert (rates, total) == ({Decimal(7): 0.5}, Decimal(8))
    assert [type(one) for one in (*rates, total)] == [Decimal, Decimal]


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("string id = 1;", "the field id is STRING, and BIGINT in the columns"),
        ("repeated int64 id = 1;", "the field id is several, and one value in the columns"),
        ("Item item = 2; int64 id = 1;", "the field item.cents is DOUBLE, and INT in the columns"),
        ("map<string, string> names = 3;", "the field names.value is STRING, and INT in the"),
        ("repeated Pair names = 3;", "the field names is several, and a map in the columns"),
    ],
)
def test_version_whose_fields_have_other_types_is_bad(written: str, sentence: str) -> None:
    columns = compiled(
        """
        message Item { int32 cents = 1; }
        message Order { int64 id = 1; Item item = 2; map<string, int32> names = 3; }
        """
    )
    types = "message Item { double cents = 1; } message Pair { string key = 1; int32 value = 2; }"
    other = compiled(f"{types} message Order {{ {written} }}")
    assert decoded(other, b"", columns).startswith(f"version 3 of the schema of orders: {sentence}")


def test_version_that_is_unknown_or_no_message_type_is_bad() -> None:
    schemas = {
        1: Schema(SchemaType.AVRO, b'"string"'),
        2: Schema(SchemaType.PROTOBUF_NATIVE, b"{}"),
        3: Schema(SchemaType.PROTOBUF_NATIVE, b"\xff"),
    }

    def lookup(_topic: str, version: int) -> Schema:
        if version not in schemas:
            raise SchemaNotFoundError("no such version")
        return schemas[version]

    decoder = ProtobufDecoder(ORDER.definition, lookup)
    errors = [decoder(b"", "orders", version)[0] or "" for version in (1, 2, 3, 4)]
    assert errors[0] == "version 1 of the schema of orders is AVRO, not PROTOBUF_NATIVE"
    assert errors[1].startswith("version 2 of the schema of orders: the descriptors cannot be read")
    assert errors[2].startswith("version 3 of the schema of orders: the descriptors cannot be read")
    assert errors[3] == "orders has no version 4 of its schema, which the value names"
    assert decoder(b"") == (None, [EMPTY])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"\x0a\x01x", "the field id does not fit BIGINT"),
        (b"\x50\x07", "the field state does not fit shop.State: 7"),
        (b"\x22\x05\x0a\x01a\x10\x07", "the field states.value does not fit shop.State: 7"),
        (b"\x1a\x03\x10\x01\x08", "the field items.name of shop.Order cannot be read"),
        (b"\x1a\x03\x0a\x01\xff", "the field items.name of shop.Order cannot be read"),
        (b"\x1a\x02\x08\x01", "the field items.name does not fit STRING"),
        (b"\x08\x01\x12\x05a", "the field note of shop.Order cannot be read"),
        (b"\x08\x01\x12\x01\xff", "the field note of shop.Order cannot be read"),
        (b"\x45\x01\x01\x01\x01\x12\x01\xff", "the field note of shop.Order cannot be read"),
        (b"\x81\x01" + bytes(8) + b"\x12\x01\xff", "the field note of shop.Order cannot be read"),
        (b"\x08\x80", "the field id of shop.Order cannot be read"),
        (b"\x07", "shop.Order cannot be read"),
    ],
)
def test_bad_value_names_its_field(value: bytes, sentence: str) -> None:
    assert decoded(ORDER, value) == sentence


def test_text_of_proto2_that_is_not_utf8_and_a_closed_enums_number_are_bad() -> None:
    old = compiled(
        """
        enum State { NEW = 0; }
        message Order { optional string note = 1; optional State state = 2; }
        """,
        syntax="proto2",
    )
    assert decoded(old, b"\x0a\x01\xff") == "the field note is not UTF-8"
    assert decoded(old, b"\x10\x07") == "the field state does not fit shop.State"


def test_field_behind_a_group_is_named() -> None:
    old = compiled(
        """
        message Order {
          repeated group Part = 1 { optional group Deep = 2 { optional string name = 3; } }
          optional string note = 4;
        }
        """,
        syntax="proto2",
    )
    made = old.make()
    made.part.add().deep.name = "x"
    whole = made.SerializeToString()
    assert decoded(old, whole) == ([(("x",),)], None)
    assert decoded(old, whole + b"\x22\x05a") == "the field note of shop.Order cannot be read"
    assert decoded(old, whole[:-1]) == "the field part of shop.Order cannot be read"


def test_value_of_many_fields_is_bad_soon() -> None:
    many = b"\x08\x01" * 1_000_000
    assert decoded(ORDER, many)[0] == 1
    began = time.process_time()
    assert decoded(ORDER, many + b"\x08\x80") == "shop.Order cannot be read"
    assert decoded(ORDER, b"\x13" * 1_000_000) == "the field note of shop.Order cannot be read"
    assert time.process_time() - began < 1


def test_fields_that_the_version_does_not_have_are_passed_over() -> None:
    small = compiled("message Order { int64 id = 1; }")
    assert decoded(small, ORDER.make(id=4, note="x").SerializeToString()) == (4,)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_row_or_a_bounded_sentence(value: bytes) -> None:
    found = decoded(ORDER, value)
    assert isinstance(found, tuple) or 0 < len(found) <= MAX_SENTENCE_CHARACTERS + 3


@pytest.mark.parametrize(
    "text",
    ["message Order {}", "message Order { Order inner = 1; }", "message Other { int32 a = 1; }"],
)
def test_type_without_columns_is_refused(text: str) -> None:
    name = "shop.Order" if "Order" in text else "shop.Other"
    definition = json.loads(compiled(text, name).definition)
    definition["rootMessageTypeName"] = "shop.Order"
    with pytest.raises(InvalidSchemaError):
        protobuf_columns(json.dumps(definition))


def test_columns_of_types_that_are_named_again_and_again_are_bounded() -> None:
    types = "message M0 { int32 a = 1; }"
    for number in range(1, 25):
        types += f"message M{number} {{ M{number - 1} a = 1; M{number - 1} b = 2; }}"
    with pytest.raises(InvalidSchemaError, match="at most 10000"):
        protobuf_columns(compiled(types, "shop.M24").definition)


def test_files_in_any_order_take_a_time_that_grows_with_their_number_alone() -> None:
    files = FileDescriptorSet()
    for number in reversed(range(4_000)):
        file = files.file.add(name=str(number), dependency=[str(number - 1)] * (number > 0))
        if not number:
            kind = file.message_type.add(name="Order")
            kind.field.add(
                name="id",
                number=1,
                type=FieldDescriptorProto.TYPE_INT64,
                label=FieldDescriptorProto.LABEL_OPTIONAL,
            )
    text = base64.b64encode(files.SerializeToString()).decode()
    definition = json.dumps({"fileDescriptorSet": text, "rootMessageTypeName": "Order"})
    began = time.process_time()
    assert protobuf_columns(definition) == {"id": "BIGINT"}
    assert time.process_time() - began < 1


def test_files_that_wait_for_one_that_is_not_there_are_refused() -> None:
    definition = json.loads(ORDER.definition)
    files = FileDescriptorSet.FromString(base64.b64decode(definition["fileDescriptorSet"]))
    del files.file[1]
    text = base64.b64encode(files.SerializeToString()).decode()
    with pytest.raises(InvalidSchemaError, match="cannot be read"):
        protobuf_columns(json.dumps({**definition, "fileDescriptorSet": text}))


JSON = """
import "google/protobuf/struct.proto";
message Order {
  google.protobuf.Struct more = 1;
  repeated google.protobuf.Value values = 2;
  map<string, google.protobuf.ListValue> lists = 3;
  optional int32 HasField = 4;
  optional int32 DESCRIPTOR = 5;
}
"""


def test_google_types_of_any_json_are_texts_of_it() -> None:
    kind = compiled(JSON)
    assert protobuf_columns(kind.definition) == {
        "more": "STRING",
        "values": "ARRAY<STRING>",
        "lists": "MAP<STRING, STRING>",
        "HasField": "INT",
        "DESCRIPTOR": "INT",
    }
    made = kind.make()
    made.more["ä"] = {"a": [1.5, None, True]}
    made.values.add(string_value="x")
    made.values.add()
    made.lists["l"].append(2)
    assert decoded(kind, made.SerializeToString()) == (
        *('{"ä":{"a":[1.5,null,true]}}', ['"x"', "null"], {"l": "[2.0]"}, None, None),
    )
    made.values[1].number_value = float("nan")
    assert "the field values is not JSON" in decoded(kind, made.SerializeToString())
    structs = compiled(
        JSON.replace("google.protobuf.Struct more", "Plain more") + "message Plain { int32 a = 1; }"
    )
    said = decoded(kind, made.SerializeToString(), structs)
    assert said.endswith("the field more is STRING, and STRUCT in the columns")


def test_fields_may_have_the_names_of_what_every_message_has() -> None:
    kind = compiled(JSON)
    value = kind.make(HasField=1, DESCRIPTOR=0).SerializeToString()
    assert decoded(kind, value) == (None, [], {}, 1, 0)
    required = compiled("message Order { required int32 HasField = 4; }", syntax="proto2")
    assert decoded(required, value) == (1,)
