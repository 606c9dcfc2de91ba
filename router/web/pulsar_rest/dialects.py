"""The two ways in which a request to produce is written: PIP 64's, and the one Apache Pulsar has.

PIP 64 says `schema_type`, `schema_version`, `key_schema`, `value_schema`, and `value`; what Apache
Pulsar implemented says `schemaVersion`, `keySchema`, `valueSchema`, `producerName`, and `payload`,
which is always a text. A request is read in the dialect whose words it uses, and answered in it.
One that uses words of both is refused: half of it would be ignored. Words that neither knows are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from router.errors import RouterError
from router.errors.quoting import quoted
from router.model import LOCAL_CLUSTER, REQUEST_PRODUCER, Position
from router.services.producing import MessageResult
from router.web.pulsar_rest import ids
from router.web.pulsar_rest.errors import bad, class_of, number_of

MAX_TIME: Final = 2**63 - 1
MAX_PROPERTIES: Final = 1_000
MAX_CLUSTERS: Final = 100
_CLUSTER: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_WHOLE: Final = re.compile(r"\s*[0-9]{1,19}\s*")


class RestDialect(Enum):
    """Which words a request uses."""

    PIP = "pip"
    PULSAR = "pulsar"


_OF_REQUEST: Final = {
    RestDialect.PIP: (
        "schema_type",
        "schema_version",
        "key_schema",
        "value_schema",
        "producer_name",
    ),
    RestDialect.PULSAR: ("schemaVersion", "keySchema", "valueSchema", "producerName"),
}
_OF_MESSAGE: Final = {RestDialect.PIP: "value", RestDialect.PULSAR: "payload"}
NO_VERSION: Final = -1
"""What Apache Pulsar's own client classes write for no schema version."""


@dataclass(frozen=True, slots=True)
class RequestedSchema:
    """What a request says of the schema: a version, or a type with definitions, or nothing."""

    type: str | None = None
    version: int | None = None
    key: object = None
    value: object = None

    def given(self) -> bool:
        """Return whether it says anything."""
        return any(found is not None for found in (self.type, self.version, self.key, self.value))


@dataclass(frozen=True, slots=True)
class Sent:
    """One message as the request has it; times in ms since 1970."""

    value: object
    has_value: bool
    key: object
    partition: int | None
    properties: Mapping[str, str]
    event_time: int | None
    sequence: int | None
    deliver_at: int | None
    deliver_after: int | None
    replicate_to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """A request to produce."""

    dialect: RestDialect
    schema: RequestedSchema
    producer: str | None
    messages: list[Sent]


def read(body: object, dialect: RestDialect, limit: int) -> ProduceRequest:
    """Read the body of a request to produce, of this dialect; raise RefusedError."""
    if not isinstance(body, dict):
        raise bad("the body is no JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise bad("messages: expected a list of messages")
    if len(messages) > limit:
        raise bad(f"messages: {len(messages)} of them, of at most {limit} (publish.max_messages)")
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise bad(f"messages[{number}] is no object")
    word = _OF_MESSAGE[dialect]
    return ProduceRequest(
        dialect,
        requested_schema(body, dialect),
        _producer(body, dialect),
        [_sent(f"messages[{number}]", sent, word) for number, sent in enumerate(messages)],
    )


def dialect_of(body: object) -> RestDialect:
    """Return the dialect of a body; raise RefusedError for one that uses both."""
    if not isinstance(body, dict):
        return RestDialect.PIP
    messages = body.get("messages")
    used = {
        dialect: sorted(
            {word for word in _OF_REQUEST[dialect] if word in body}
            | {
                _OF_MESSAGE[dialect]
                for message in (messages if isinstance(messages, list) else ())
                if isinstance(message, dict) and _OF_MESSAGE[dialect] in message
            }
        )
        for dialect in RestDialect
    }
    if used[RestDialect.PIP] and used[RestDialect.PULSAR]:
        raise bad(
            f"{used[RestDialect.PIP][0]} is a word of PIP 64 and {used[RestDialect.PULSAR][0]}"
            " one of Apache Pulsar's dialect: use those of one"
        )
    return RestDialect.PULSAR if used[RestDialect.PULSAR] else RestDialect.PIP


def requested_schema(body: Mapping[str, Any], dialect: RestDialect) -> RequestedSchema:
    """Read what a body says of the schema; raise RefusedError."""
    pulsar = dialect is RestDialect.PULSAR
    words = _OF_REQUEST[dialect]
    version = body.get(words[0] if pulsar else words[1])
    if version is not None:
        version = _number(words[0] if pulsar else words[1], version, least=NO_VERSION)
    key, value = (body.get(word) for word in (words[1:3] if pulsar else words[2:4]))
    kind = None if pulsar else body.get("schema_type")
    if kind is not None and not isinstance(kind, str):
        raise bad("schema_type: expected a text")
    return RequestedSchema(
        kind or None,
        None if version == NO_VERSION else version,
        # Apache Pulsar's own client classes write empty texts for none.
        None if key == "" else key,
        None if value == "" else value,
    )


def answer(
    dialect: RestDialect, results: list[MessageResult], version: int | None
) -> dict[str, object]:
    """Return the answer to a request, in its dialect."""
    if dialect is RestDialect.PULSAR:
        shown = NO_VERSION if version is None else version
        published = [_published(result, shown) for result in results]
        return {"messagePublishResults": published, "schemaVersion": shown}
    return {"schema_version": version, "messageIds": [_message_id(result) for result in results]}


def _message_id(result: MessageResult) -> dict[str, object]:
    position, error = result.position, result.error
    if position is None or error is not None:
        found = error or RouterError()
        return {
            "partition": None,
            "messageId": None,
            "error_code": class_of(found),
            "error": _error_text(found),
        }
    return {
        "partition": max(position.partition, 0),
        "messageId": ids.write(position) if _known(position) else None,
        "error_code": None,
        "error": None,
    }


def _published(result: MessageResult, version: int) -> dict[str, object]:
    position, error = result.position, result.error
    if position is None or error is not None:
        found = error or RouterError()
        return {
            "messageId": None,
            "errorCode": class_of(found),
            "errorMsg": _error_text(found),
            "schemaVersion": version,
        }
    return {
        "messageId": ids.write_colons(position) if _known(position) else None,
        "errorCode": 0,
        "schemaVersion": version,
    }


def _known(position: Position) -> bool:
    """Return whether a store says where a message is: of an old repeat it may not know."""
    return position.ledger >= 0


def _error_text(error: RouterError) -> str:
    return f"{number_of(error)}: {error}"


def _producer(body: Mapping[str, Any], dialect: RestDialect) -> str | None:
    word = "producerName" if dialect is RestDialect.PULSAR else "producer_name"
    name = body.get(word)
    if name is None or name == "":
        return None
    if not isinstance(name, str) or len(name) > 249:
        raise bad(f"{word}: expected a text of at most 249 characters")
    if name.startswith(REQUEST_PRODUCER):
        raise bad(f"{word}: names that begin with {REQUEST_PRODUCER} are the router's own")
    return name


def _sent(at: str, message: Mapping[str, Any], word: str) -> Sent:
    partition = message.get("partition") if word == "value" else None
    if message.get("deliverAt") is not None and message.get("deliverAfterMs") is not None:
        raise bad(f"{at}: deliverAt and deliverAfterMs exclude each other")
    return Sent(
        message.get(word),
        word in message,
        message.get("key"),
        None if partition is None else _number(f"{at}.partition", partition),
        _properties(at, message.get("properties")),
        _time(f"{at}.eventTime", message.get("eventTime")),
        _optional(f"{at}.sequenceId", message.get("sequenceId")),
        _time(f"{at}.deliverAt", message.get("deliverAt")),
        _time(f"{at}.deliverAfterMs", message.get("deliverAfterMs")),
        _clusters(at, message),
    )


def _clusters(at: str, message: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the clusters that a message is meant for, as Pulsar's clients write them."""
    named, disabled = message.get("replicationClusters"), message.get("disableReplication")
    if named is None:
        named = []
    if not isinstance(named, list) or len(named) > MAX_CLUSTERS:
        raise bad(f"{at}.replicationClusters: expected a list of at most {MAX_CLUSTERS} names")
    for name in named:
        if not (isinstance(name, str) and _CLUSTER.fullmatch(name)):
            raise bad(f"{at}.replicationClusters: {quoted(name)} is no name of a cluster")
    if disabled is not None and not isinstance(disabled, bool):
        raise bad(f"{at}.disableReplication: expected true or false")
    return (*named, LOCAL_CLUSTER) if disabled else tuple(named)


def _properties(at: str, given: object) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict) or len(given) > MAX_PROPERTIES:
        raise bad(f"{at}.properties: expected an object of at most {MAX_PROPERTIES} texts")
    for name, value in given.items():
        if not isinstance(value, str):
            raise bad(f"{at}.properties: {quoted(name)} is no text")
    return given


def _time(name: str, value: object) -> int | None:
    """Read a time; 0 is none, as in the Pulsar protocol."""
    return _optional(name, value) or None


def _optional(name: str, value: object) -> int | None:
    return None if value is None or value == "" else _number(name, value)


def _number(name: str, value: object, least: int = 0) -> int:
    """Read a whole number, maybe written as a text; raise RefusedError."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON has one kind of number: 2.0 is 2
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_TIME:
        raise bad(f"{name}: expected a whole number from {least} on")
    return value
