"""Headers whose names repeat as properties, and back, the same way for each dialect that has them.

A property has one value, the last of its name. Where a name repeats, the property `router-headers`
lists all headers in their order, as JSON: `[["a","1"],["a","2"]]`. A dialect with headers writes
that list in place of the properties, as long as it is a list of these properties. What stands for a
message's subject or for the headers of one dialect as they were is never in the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from router.wire.nats.headers import SUBJECT

HEADERS: Final = "router-headers"
"""The property that lists headers of which a name repeats."""
KAFKA_HEADERS: Final = "router-kafka-headers"
"""The property that has headers of Kafka which no text can carry."""
NATS_HEADERS: Final = "router-nats-headers"
"""The property that has a block of headers which no list can carry."""

_UNLISTED: Final = frozenset({HEADERS, KAFKA_HEADERS, NATS_HEADERS, SUBJECT})

Pairs = Sequence[tuple[str, str]]


def as_properties(pairs: Pairs) -> tuple[dict[str, str], bool]:
    """Return headers as properties, and whether `as_pairs` makes all of them again."""
    properties = dict(pairs)
    if len(properties) == len(pairs):
        return properties, True
    listed = [pair for pair in pairs if pair[0] not in _UNLISTED]
    unlisted = len(properties.keys() & _UNLISTED)
    exact = HEADERS not in properties and len(pairs) - len(listed) == unlisted
    if _repeats(listed):
        properties[HEADERS] = orjson.dumps(listed).decode()
    return properties, exact


def as_pairs(properties: Mapping[str, str]) -> Pairs:
    """Return properties as headers, of which names may repeat; `as_properties` has them again."""
    text = properties.get(HEADERS)
    if text is not None:
        listed = _read(text)
        single = {name: value for name, value in properties.items() if name not in _UNLISTED}
        if _repeats(listed) and dict(listed) == single:
            others = properties.keys() & _UNLISTED - {HEADERS}
            return [*listed, *((name, properties[name]) for name in sorted(others))]
    return list(properties.items())


def _repeats(pairs: Pairs) -> bool:
    return len(dict(pairs)) < len(pairs)


def _read(text: str) -> Pairs:
    """Return the pairs of a list, none if it is not one as it is written here."""
    try:
        found: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return []
    pairs = (
        [tuple(one) for one in found if isinstance(one, list)] if isinstance(found, list) else []
    )
    sound = all(len(one) == 2 and all(isinstance(part, str) for part in one) for one in pairs)
    return pairs if sound and orjson.dumps(pairs).decode() == text else []
