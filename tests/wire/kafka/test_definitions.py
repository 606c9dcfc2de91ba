"""Reading definitions: each rule of Kafka's generator, refused with file, field and sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.kafka.definitions import definition_texts
from router.wire.kafka.definitions import DefinitionError, MessageDefinition, attribute, camel_case
from router.wire.kafka.parsing import check_set, parse
from router.wire.kafka.versions import ALL, NONE, Versions, parse_versions

ITEM = {"name": "Items", "type": "[]Item", "versions": "0+"}
INNER = [{"name": "Id", "type": "int32", "versions": "0+"}]


def message(*fields: dict[str, Any], **more: Any) -> str:
    found = {
        "apiKey": 1,
        "type": "request",
        "name": "ExampleRequest",
        "validVersions": "0-3",
        "flexibleVersions": "2+",
        "fields": list(fields),
        **more,
    }
    return json.dumps({key: value for key, value in found.items() if value != "absent"})


def field(type_: str, **more: Any) -> dict[str, Any]:
    found = {"name": "Value", "type": type_, "versions": "0+", **more}
    return {key: value for key, value in found.items() if value != "absent"}


def read(text: str) -> MessageDefinition:
    return parse(text, "Example.json")


def refused(text: str) -> str:
    with pytest.raises(DefinitionError) as failure:
        read(text)
    assert str(failure.value).startswith("Example.json: ")
    return str(failure.value).removeprefix("Example.json: ")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"name": "Bad-Name"}, "a name is letters and digits, a letter first"),
        ({"name": "1st"}, "a name is letters and digits, a letter first"),
        ({"type": "reply"}, "type is one of coordinator-key, coordinator-value, data, header"),
        ({"validVersions": "absent"}, "validVersions is missing"),
        ({"validVersions": "0+"}, "validVersions needs an upper end"),
        ({"validVersions": "3-1"}, "validVersions: versions go from 0 to 32767, the lower end"),
        ({"validVersions": "-1"}, "validVersions: versions are none, a number, a range"),
        ({"flexibleVersions": "absent"}, "flexibleVersions is missing; say none"),
        ({"flexibleVersions": "1-2"}, "flexibleVersions is none or has no upper end"),
        (
            {"type": "data", "apiKey": "absent", "listeners": ["broker"]},
            "listeners is for requests",
        ),
        ({"type": "response", "latestVersionUnstable": True}, "latestVersionUnstable is for req"),
        ({"listeners": ["zookeeper"]}, "listeners are broker, controller, zkBroker"),
        ({"apiKey": "absent"}, "a request or response needs an apiKey"),
        ({"apiKey": -1}, "apiKey is a number from 0 to 32767"),
        ({"type": "header"}, "a header has no apiKey"),
        ({"colour": "red"}, "there is no key colour"),
        (
            {"commonStructs": [{"name": "low", "versions": "0+"}]},
            "low: the name of a struct begins",
        ),
    ],
)
def test_a_message_that_breaks_a_rule_is_refused(more: dict[str, Any], sentence: str) -> None:
    assert refused(message(**more)).startswith(sentence)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (field("int32", versions="absent"), "versions is missing"),
        (field("absent"), "type is missing"),
        (field("int32", colour="red"), "there is no key colour"),
        (field("[][]int32"), "there are no arrays of arrays"),
        (field("[]records"), "there are no arrays of records"),
        (field("integer"), "there is no type integer"),
        (field("int32", nullableVersions="0+"), "int32 cannot be null"),
        (field("uuid", nullableVersions="0+"), "uuid cannot be null"),
        (field("int32", fields=INNER), "int32 has no fields"),
        (field("[]Thing"), "the fields of Thing are missing"),
        (field("string", tag=0), "a tag needs taggedVersions"),
        (field("string", taggedVersions="2+"), "taggedVersions needs a tag"),
        (field("string", tag=-1, taggedVersions="2+"), "a tag is a number from 0 on"),
        (field("string", tag=0, taggedVersions="2-3"), "taggedVersions has no upper end"),
        (field("string", tag=0, taggedVersions="1+"), "a field can be tagged in flexible versions"),
        (
            field("string", versions="3+", tag=0, taggedVersions="2+"),
            "taggedVersions are among the versions of the field",
        ),
        (
            field("string", tag=0, taggedVersions="2+", nullableVersions="3+"),
            "a tagged field is nullable in all tagged versions or in none",
        ),
        (
            field("records", tag=0, taggedVersions="2+", nullableVersions="2+"),
            "records cannot be tagged",
        ),
        (field("string", zeroCopy=True), "zeroCopy is for bytes only"),
        (field("int32", flexibleVersions="none"), "flexibleVersions of a field is for string and"),
        (field("string", flexibleVersions="1+"), "flexibleVersions are among those of the message"),
        (field("string", entityType="planet"), "entityType is one of"),
        (field("string", entityType="brokerId"), "a brokerId has the type int32, not string"),
        (field("string", ignorable="perhaps"), "ignorable is true or false"),
        (field("int8", default="128"), "128 is no default of int8"),
        (field("int16", default="0x8000"), "0x8000 is no default of int16"),
        (field("uint16", default="-1"), "-1 is no default of uint16"),
        (field("uint32", default=1 << 32), "4294967296 is no default of uint32"),
        (field("int32", default=1.5), "1.5 is no default of int32"),
        (field("int32", default="09"), "09 is no default of int32"),
        (field("bool", default="yes"), "yes is no default of bool"),
        (field("float64", default="much"), "much is no default of float64"),
        (field("string", default="null"), "null is a default of fields that are nullable in all"),
        (
            field("string", default="null", nullableVersions="1+"),
            "null is a default of fields that are nullable in all",
        ),
        (field("bytes", default="x"), "the default of bytes is empty or null"),
        (field("[]int32", default="1"), "the default of []int32 is empty or null"),
        (field("records", default="x"), "the default of records is null"),
        (field("uuid", default="x"), "x is no default of uuid"),
    ],
)
def test_a_field_that_breaks_a_rule_is_refused(given: dict[str, Any], sentence: str) -> None:
    assert refused(message(given)).startswith(f"ExampleRequest.Value: {sentence}")


def test_structs_and_their_fields_keep_the_rules() -> None:
    keyed = [{"name": "Id", "type": "int32", "versions": "0+", "mapKey": True}]
    common = {"name": "Item", "versions": "0+", "fields": INNER}
    tagged = field("int32", mapKey=True, tag=0, taggedVersions="2+")
    assert "the same name" in refused(message(field("int32"), field("int8", name="value")))
    assert "mapKey is for fields of structs in arrays" in refused(
        message(field("int32", mapKey=True))
    )
    assert "mapKey is for structs in arrays" in refused(message(field("Item", fields=keyed)))
    assert "cannot be a mapKey" in refused(message({**ITEM, "fields": [*INNER, tagged]}))
    assert "is defined twice" in refused(
        message({**ITEM, "fields": INNER}, {**ITEM, "name": "More", "fields": INNER})
    )
    assert "is a common struct" in refused(
        message({**ITEM, "fields": INNER}, commonStructs=[common])
    )
    assert "is defined twice" in refused(message(ITEM, commonStructs=[common, common]))
    assert "contains itself" in refused(
        message(ITEM, commonStructs=[{**common, "fields": [*INNER, ITEM]}])
    )
    assert "has the name of the message" in refused(message(field("ExampleRequest", fields=INNER)))
    assert read(message(ITEM, commonStructs=[common])).structs["Item"].fields[0].name == "Id"


def test_tags_are_numbered_from_zero_without_gaps() -> None:
    def tagged(name: str, tag: int) -> dict[str, Any]:
        return field("int32", name=name, tag=tag, taggedVersions="2+")

    found = read(message(tagged("A", 1), tagged("B", 0)))
    assert [one.tag for one in found.struct.fields] == [1, 0]
    assert "without gaps, not [0, 2]" in refused(message(tagged("A", 0), tagged("B", 2)))
    assert "without gaps, not [0, 0]" in refused(message(tagged("A", 0), tagged("B", 0)))


def test_structs_are_nested_to_a_depth() -> None:
    inner: dict[str, Any] = field("int32")
    for depth in range(12):
        inner = field(f"[]Level{depth}", fields=[inner])
    assert "structs may be nested 8 deep" in refused(message(inner))


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (field("int32"), 0),
        (field("int32", default="0x7fffffff"), (1 << 31) - 1),
        (field("int32", default="-0x1"), -1),
        (field("int16", default="010"), 8),
        (field("int64", default=-1), -1),
        (field("bool", default="true"), True),
        (field("bool", default=True), True),
        (field("float64", default="1.5"), 1.5),
        (field("string"), ""),
        (field("string", default="x"), "x"),
        (field("string", default="null", nullableVersions="0+"), None),
        (field("string", default=None, nullableVersions="0+"), ""),
        (field("bytes"), b""),
        (field("uuid"), bytes(16)),
        (field("records", nullableVersions="0+"), None),
        (field("[]int32"), ()),
        (field("[]int32", default="null", nullableVersions="0+"), None),
    ],
)
def test_defaults_are_read_by_type(given: dict[str, Any], value: Any) -> None:
    assert read(message(given)).struct.fields[0].default == value


def test_comments_are_left_out_and_strings_kept() -> None:
    text = message(field("string", about="see http://example.org /* no comment */"))
    commented = f"// licence\n/* and\nmore */ {text} // end"
    assert read(commented) == read(text)
    assert read(text).struct.fields[0].about.endswith("/* no comment */")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "{}]}", '{"a": 1, "a": 2}', "[" * 100_000, " " * (1 << 20) + "{}"]
)
def test_what_is_no_definition_is_refused(text: str) -> None:
    assert refused(text)


def test_a_set_has_one_request_and_one_response_for_an_api() -> None:
    first, second = read(message()), read(message(name="OtherRequest"))
    response = read(message(name="ExampleResponse", type="response"))
    check_set([first, response])
    with pytest.raises(DefinitionError, match="another request with the API key 1, ExampleReq"):
        check_set([first, response, second])


def test_the_definitions_of_kafka_python_are_read() -> None:
    found = [parse(text, file) for file, text in definition_texts().items()]
    check_set(found)
    assert len(found) >= 108
    assert all(definition.file == f"{definition.name}.json" for definition in found)


def test_versions_are_ranges() -> None:
    assert [parse_versions(text) for text in ("none", "3", "0-4", "2+")] == [
        NONE,
        Versions(3, 3),
        Versions(0, 4),
        Versions(2, None),
    ]
    assert [str(parse_versions(text)) for text in ("none", "3", "0-4", "2+")] == [
        "none",
        "3",
        "0-4",
        "2+",
    ]
    assert parse_versions("2+") & parse_versions("0-4") == Versions(2, 4)
    assert parse_versions("5+") & parse_versions("0-4") == NONE
    assert parse_versions("2-3").within(ALL)
    assert not ALL.within(parse_versions("2-3"))
    assert NONE.within(NONE)
    assert list(parse_versions("1-3").numbers()) == [1, 2, 3]
    for text in ("", "-1", "1-", "2-1", "x", "1,2", "99999"):
        with pytest.raises(ValueError, match="versions"):
            parse_versions(text)


def test_names_follow_each_language() -> None:
    assert attribute("TopicId") == "topic_id"
    assert attribute("SASLMechanism") == "sasl_mechanism"
    assert attribute("Size") == "size_"
    assert attribute("From") == "from_"
    assert camel_case("TopicId") == "topicId"
