"""The segments of paths that have names: what each one is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.web.openapi.description import Kind, Parameter

NAME: Final = "^[A-Za-z0-9._-]{1,249}$"
MEMBER: Final = "^[A-Za-z0-9._:@~+-]{1,249}$"
PULSAR: Final = "^[A-Za-z0-9._=:-]{1,249}$"

_MARK: Final = r"(@(earliest|latest|[0-9]{1,15})|@?[0-9]{1,19}\.[0-9]{1,19}(\.[0-9]{1,10})?)"
ID: Final = r"([0-9]{1,19}:[0-9]{1,19}:-?[0-9]{1,9}(:[0-9]{1,9})?|[A-Za-z0-9+/_-]+=*)"
"""A message's id, in Apache Pulsar's form or in PIP 64's."""
MARKS: Final = rf"^({_MARK}(,{_MARK})*|{ID})$"
"""Where a stream goes on: in each partition, or behind a message."""
PLACE: Final = rf"^(earliest|latest|[0-9]{{1,15}}|[0-9]{{4}}-[0-9T:.Z+-]+|{ID})$"


def _segment(name: str, meaning: str, pattern: str = "") -> Parameter:
    return Parameter(name, meaning, place="path", pattern=pattern)


def _number(name: str, meaning: str) -> Parameter:
    return Parameter(name, meaning, Kind.NUMBER, place="path")


_ALL: Final = (
    _segment("topic", "Name of the topic.", NAME),
    _segment("group", "Name of the consumer group.", MEMBER),
    _segment("consumer", "Id of the consumer.", MEMBER),
    Parameter("role", "Which list.", Kind.CHOICE, ("producers", "consumers"), "path"),
    _segment("key", "Name of the API key or user.", MEMBER),
    _segment("ip", "Address, or network with `/` as `%2F`."),
    _segment("bits", "Bits of the network's prefix.", "^[0-9]{1,3}$"),
    _segment("number", "Any text."),
    _segment("name", "Name."),
    _segment("digest", "Digest of the running build."),
    _segment("tenant", "Name of the tenant.", PULSAR),
    _segment("namespace", "Name of the namespace.", PULSAR),
    Parameter("domain", "Domain.", Kind.CHOICE, ("persistent", "non-persistent"), "path"),
    _segment("subscription", "Name of the subscription.", MEMBER),
    _number("partition", "Number of the partition, from 0 on."),
    _segment("cluster", "Name of the cluster, `standalone`."),
    _number("version", "Version of the schema."),
    _number("position", "Which entry, from 1 on."),
    _number("ledger", "Ledger of the message's id."),
    _number("entry", "Entry of the message's id."),
    _number("count", "Number of entries."),
    _number("seconds", "Age in seconds."),
    _number("timestamp", "Milliseconds since 1970."),
)
SEGMENTS: Final[Mapping[str, Parameter]] = {segment.name: segment for segment in _ALL}
