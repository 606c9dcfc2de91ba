"""The table view of a compacted topic: the newest value of each key, as JSON shows it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from router.errors import NotSupportedError
from router.model import TopicName


class LatestMessageAdministration(Protocol):
    """The calls of administration at the node's broker."""

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the result of a call."""
        ...


@dataclass(frozen=True, slots=True)
class LatestValues:
    """Answers the newest values; `administration` None: messages do not live at the node."""

    administration: LatestMessageAdministration | None

    def value(self, topic: TopicName, key: bytes) -> dict[str, Any]:
        """Return the newest message of a key.

        Raises ValueNotFoundError, TopicNotFoundError, and NotAllowedError if the topic is not
        compacted.
        """
        found = self._call("latest_value", topic=str(topic), key=b64encode(key).decode())
        return shown(found)

    def page(self, topic: TopicName, after: str | None, limit: int) -> dict[str, Any]:
        """Return `values`, and `next`, which is `after` of the next page; None: there is none.

        Raises TopicNotFoundError, BadRequestError for an `after` that no page answered, and
        NotAllowedError if the topic is not compacted.
        """
        found = self._call("latest_values", topic=str(topic), after=after, limit=limit)
        return {"values": [shown(one) for one in found["values"]], "next": found["next"]}

    def _call(self, name: str, **arguments: Any) -> Any:
        if self.administration is None:
            raise NotSupportedError("the newest value of a key is known of the node's own log only")
        return self.administration.call(name, **arguments)


def shown(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as answers show it.

    Objects and arrays of JSON are shown as they are, other text as text, and bytes that are no
    UTF-8 in base64, as `key_base64` and `value_base64`.
    """
    key, value = b64decode(found["key"]), b64decode(found["value"])
    return (
        _member("key", key, key.decode)
        | _member("value", value, lambda: _value(value))
        | {name: found[name] for name in ("properties", "time_ms", "partition", "number")}
    )


def _member(name: str, data: bytes, read: Any) -> dict[str, Any]:
    try:
        return {name: read()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


def _value(value: bytes) -> Any:
    if value[:1] in {b"{", b"["}:
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            pass
    return value.decode()
