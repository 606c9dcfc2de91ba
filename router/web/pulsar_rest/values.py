"""Values of messages: from JSON to payloads by the request's schema, and back by the message's own.

Without a schema a value is a text, kept as UTF-8. So is a key, unless the request writes `bytes`:
then both are base64, as `bytes` reads both. Apache Pulsar's dialect has every value as a
text, which is read as the schema has it: JSON and Avro's JSON encoding are parsed, numbers are
converted. Nothing is stored unless all values fit: Apache Pulsar stores an empty message for one
that does not.

Back, a schema that the reader names decides, and the bytes of a value are never guessed at then:
`bytes` shows every key and value in base64, any other is the schema of messages that carry none.
Messages that carry one are read by their own. A value that its schema does not fit, or that is no
UTF-8 without one, comes in base64, and says so (`valueEncoding`): a message that cannot be read
must not hold up those behind it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import orjson

from router.errors import PayloadMismatchError, RouterError
from router.errors.quoting import quoted
from router.model import LOCAL_CLUSTER, Message, Schema, SchemaType, Stored, TopicName
from router.schemas import decode, decode_pair, encode, encode_pair, halves
from router.services.producing import Outgoing
from router.services.topic_schemas import TopicSchemas
from router.web.pulsar_rest import ids
from router.web.pulsar_rest.dialects import MAX_TIME, ProduceRequest, RestDialect, Sent
from router.web.pulsar_rest.errors import RestRefusedError, bad
from router.web.pulsar_rest.schemas import VERSION_BYTES, PublishSchema, number_of_version

_BASE64: Final = "base64"
# What is no text: numbers, truth values and times, of which JSON has each.
_PARSED: Final = frozenset(
    {SchemaType.JSON, SchemaType.AVRO}
    | {kind for kind in SchemaType if SchemaType.BOOLEAN <= kind <= SchemaType.TIMESTAMP}
)
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})


def outgoing(
    request: ProduceRequest,
    chosen: PublishSchema,
    partition: int | None,
    wall_ms: Callable[[], int],
) -> list[Outgoing]:
    """Return the messages of a request; raise RefusedError naming the first that does not fit.

    `partition`: the one that the request's path names.
    """
    return [
        _outgoing(number, sent, request.dialect, chosen, partition, wall_ms)
        for number, sent in enumerate(request.messages)
    ]


def _outgoing(
    number: int,
    sent: Sent,
    dialect: RestDialect,
    chosen: PublishSchema,
    partition: int | None,
    wall_ms: Callable[[], int],
) -> Outgoing:
    if not sent.has_value:
        raise _bad(number, "it has no " + ("payload" if dialect is RestDialect.PULSAR else "value"))
    try:
        key, route, value = _encoded(sent, dialect, chosen.schema)
    except RouterError as error:
        raise _bad(number, str(error)) from error
    if sent.partition is not None and partition not in {None, sent.partition}:
        raise _bad(number, f"its partition is {sent.partition}, the path's is {partition}")
    due = sent.deliver_at
    if due is None and sent.deliver_after is not None:
        due = wall_ms() + sent.deliver_after
        if due > MAX_TIME:
            raise _bad(number, f"deliverAfterMs: {sent.deliver_after} is after the end of time")
    message = Message(
        value,
        key,
        sent.properties,
        sent.event_time,
        due,
        sent.sequence,
        chosen.version,
        # A pair in one payload says itself that it has no value.
        sent.value is None and not value,
        sent.replicate_to,
    )
    return Outgoing(message, partition if sent.partition is None else sent.partition, route)


def _encoded(
    sent: Sent, dialect: RestDialect, schema: Schema | None
) -> tuple[bytes | None, bytes | None, bytes]:
    """Return a message's key, what routes it, and its payload."""
    read = _as_text if dialect is RestDialect.PULSAR else _as_is
    if schema is not None and schema.type is SchemaType.KEY_VALUE:
        pair = halves(schema)
        first, second = read(pair.key, sent.key), read(pair.value, sent.value)
        key, payload = encode_pair(schema, first, second)
        route = None if first is None else key if pair.separated else encode(pair.key, first)
        return key, route, payload
    key = None if sent.key is None else _key(sent.key, dialect, schema)
    if sent.value is None:
        return key, key, b""
    if schema is None or (schema.type is SchemaType.STRING and isinstance(sent.value, str)):
        return key, key, _text(sent.value, "value")
    if schema.type is SchemaType.NONE and dialect is RestDialect.PULSAR:
        return key, key, _text(sent.value, "payload")
    return key, key, encode(schema, read(schema, sent.value))


def _key(key: object, dialect: RestDialect, schema: Schema | None) -> bytes:
    """Return the bytes of a key: a text, or base64 where the request writes bytes."""
    if schema is None or schema.type is not SchemaType.NONE or dialect is RestDialect.PULSAR:
        return _text(key, "key")
    try:
        return encode(schema, key)
    except PayloadMismatchError as error:
        raise PayloadMismatchError(f"its key: {error}") from error


def _as_is(_schema: Schema, value: object) -> object:
    return value


def _as_text(schema: Schema, value: object) -> object:
    """Return the value that a payload of Apache Pulsar's dialect stands for."""
    if value is None:
        return None
    if isinstance(value, dict | list):
        raise PayloadMismatchError("a payload is a text")
    if not isinstance(value, str):
        value = orjson.dumps(value).decode()
    if schema.type is SchemaType.NONE:
        return base64.b64encode(value.encode()).decode()
    if schema.type not in _PARSED:
        return value
    if value in _NOT_FINITE:
        return value
    try:
        parsed: object = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise PayloadMismatchError(f"{quoted(value)} is no {schema.type.name}") from error
    return parsed


def _text(value: object, what: str) -> bytes:
    if isinstance(value, bool | int | float) and what == "payload":
        return orjson.dumps(value)
    if not isinstance(value, str):
        raise PayloadMismatchError(f"its {what} is no text: name the schema that it is written by")
    return value.encode()


def _bad(number: int, sentence: str) -> RestRefusedError:
    return bad(f"messages[{number}]: {sentence}")


class MessageFormatter:
    """Messages of one topic as answers show them.

    `named`: the schema that the reader named. NONE, which requests call `bytes`, shows keys and
    values in base64; any other is for messages without a schema of their own.
    """

    def __init__(
        self, topic: TopicName, schemas: TopicSchemas, named: Schema | None = None
    ) -> None:
        self.topic = topic
        self._schemas = schemas
        self._named = named
        self._as_bytes = named is not None and named.type is SchemaType.NONE
        self._used: dict[bytes, Schema | None] = {}

    def message(self, stored: Stored) -> dict[str, object]:
        """Return one message; its value and key by its schema."""
        message = stored.message
        shown: dict[str, object] = {"messageId": ids.write(stored.position)}
        shown |= self._key_and_value(message)
        shown["partition"] = max(stored.position.partition, 0)
        shown["properties"] = dict(message.properties)
        shown["eventTime"] = message.event_time
        shown["sequenceId"] = message.sequence
        clusters = [name for name in message.replicate_to if name != LOCAL_CLUSTER]
        shown["replicationClusters"] = clusters or None
        shown["disableReplication"] = LOCAL_CLUSTER in message.replicate_to
        shown["publishTime"] = stored.publish_time
        shown["redeliveryCount"] = stored.redelivery_count
        shown["schemaVersion"] = number_of_version(message.schema_version)
        return shown

    def line(self, stored: Stored) -> bytes:
        """Return one message as a line of JSON."""
        return orjson.dumps(self.message(stored), option=orjson.OPT_NON_STR_KEYS)

    def schemas(self) -> list[dict[str, object]]:
        """Return the schemas of the messages so far."""
        return [_schema(schema) for _, schema in sorted(self._used.items()) if schema is not None]

    def _key_and_value(self, message: Message) -> dict[str, object]:
        schema = self._schema_of(message.schema_version)
        if self._as_bytes:
            value = None if message.null else message.value
            return {**_base64("key", message.key), **_base64("value", value)}
        if schema is None and not message.schema_version:
            schema = self._named
        if schema is None:
            return self._plain(message)
        try:
            if schema.type is SchemaType.KEY_VALUE:
                return _pair(schema, message)
            decoded = None if message.null else decode(schema, message.value)
        except RouterError as error:
            return self._undecoded(message, str(error))
        return {**_readable("key", message.key), "value": decoded, **_marked(schema)}

    def _plain(self, message: Message) -> dict[str, object]:
        if message.schema_version:
            return self._undecoded(message, "its schema is not known")
        value = None if message.null else message.value
        return {**_readable("key", message.key), **_readable("value", value)}

    def _undecoded(self, message: Message, why: str) -> dict[str, object]:
        value = None if message.null else message.value
        shown = {**_readable("key", message.key), **_base64("value", value)}
        return shown if message.null else {**shown, "valueError": why}

    def _schema_of(self, version: bytes) -> Schema | None:
        if len(version) != VERSION_BYTES:
            # Producers write what they like here: a version of another size is none of the topic's.
            return None
        if version not in self._used:
            self._used[version] = self._schemas.find(self.topic, version)
        return self._used[version]


def _pair(schema: Schema, message: Message) -> dict[str, object]:
    if not message.null:
        key, value = decode_pair(schema, message.key, message.value)
        return {"key": key, "value": value}
    pair = halves(schema)
    if message.key is None or not pair.separated:
        return {**_readable("key", message.key), "value": None}
    return {"key": decode(pair.key, message.key), "value": None}


def _readable(name: str, value: bytes | None) -> dict[str, object]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return _base64(name, value)


def _base64(name: str, value: bytes | None) -> dict[str, object]:
    if value is None:
        return {name: None}
    return {name: base64.b64encode(value).decode(), f"{name}Encoding": _BASE64}


def _marked(schema: Schema) -> dict[str, object]:
    """Say of a value that its schema has as bytes how it is written."""
    stored = {SchemaType.NONE, SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE, SchemaType.EXTERNAL}
    return {"valueEncoding": _BASE64} if schema.type in stored else {}


def _schema(schema: Schema) -> dict[str, object]:
    return {
        "type": schema.type.name,
        "version": number_of_version(schema.version),
        "data": base64.b64encode(schema.data).decode(),
        "properties": dict(schema.properties),
    }
