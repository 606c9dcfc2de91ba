"""What a reader sees of messages: all of them, or with values masked for who may only browse.

The one door of the pages: they show `VisibleMessage`, which only `Mask.shown` makes, and filters
are evaluated on it as well, so that no search finds what is masked. Values that cannot be masked
by path (no JSON, a schema's binary format, gzip) are masked whole, and so is what a path meets
where it expects an object or an array.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from router.errors import BadReadOptionError, BadRequestError, NotSupportedError
from router.errors.quoting import quoted
from router.model import Message, Stored, TopicName
from router.services.activity import ActivityAdministration
from router.services.message_details import headers_of
from router.services.scan import MessageFilter
from router.web.console.filters import JsonPath, Step

PROPERTY: Final = "console.mask"
"""The topic's property with the JSON paths that are masked, commas between; `key`: keys too."""
MASKED: Final = "•••"
REASON: Final = "Masked: you may browse this topic, not subscribe to it."
MAX_PATHS: Final = 100
MAX_WRITTEN: Final = 1_000
NOT_HERE: Final = "The router does not change the properties of topics of this store."
_KEY: Final = "key"
_WHOLE: Final = "*"


@dataclass(frozen=True, slots=True)
class VisibleMessage:
    """A message as its reader may see it; `bytes` of the stored value, `size` of all, in bytes."""

    stored: Stored
    bytes: int
    size: int
    masked: bool = False


@dataclass(frozen=True, slots=True)
class Mask:
    """What is masked: nothing unless it `hides`; without `paths` the whole value."""

    hides: bool = False
    paths: tuple[tuple[Step, ...], ...] = ()
    hides_key: bool = True

    @classmethod
    def read(cls, written: str) -> Mask:
        """Return the mask that a topic's property says; all of it where that cannot be read."""
        words = {word for word in re.split(r"[,\s]+", written) if word}
        try:
            found = [JsonPath.read(word) for word in words - {_KEY, _WHOLE}]
        except BadReadOptionError:
            return HIDE_ALL
        whole = _WHOLE in words or any(one.expected is not None for one in found)
        if whole or not 0 < len(found) <= MAX_PATHS:
            return HIDE_ALL
        return cls(hides=True, paths=tuple(one.steps for one in found), hides_key=_KEY in words)

    def shown(self, stored: Stored) -> VisibleMessage:
        """Return a message as it is shown; names of headers stay, their values are masked."""
        message = stored.message
        size = len(message.value), message.size()
        if not self.hides:
            return VisibleMessage(stored, *size)
        properties = dict.fromkeys((name for name, _ in headers_of(message).pairs), MASKED)
        masked = Message(
            b"" if message.null else _masked(message.value, self.paths),
            self._key(message.key),
            properties,
            message.event_time,
            null=message.null,
        )
        return VisibleMessage(replace(stored, message=masked, oversized=False), *size, masked=True)

    def matching(self, condition: MessageFilter) -> MessageFilter:
        """Return a condition of what is shown as one of what is stored."""
        return (lambda stored: condition(self.shown(stored).stored)) if self.hides else condition

    def _key(self, key: bytes | None) -> bytes | None:
        return MASKED.encode() if self.hides_key and key is not None else key


HIDE_NOTHING: Final = Mask()
HIDE_ALL: Final = Mask(hides=True)


@dataclass(frozen=True, slots=True)
class MaskProperty:
    """Sets what is masked; `administration` None: this store's properties are not changed here."""

    administration: ActivityAdministration | None

    @property
    def unavailable_reason(self) -> str:
        """Return why it cannot be set; empty: it can."""
        return NOT_HERE if self.administration is None else ""

    def set(self, topic: TopicName, written: str) -> None:
        """Set what is masked of a topic, "": all; raise NotSupportedError, TopicNotFoundError."""
        if self.administration is None:
            raise NotSupportedError(NOT_HERE)
        new, clear = ({PROPERTY: written}, []) if written else ({}, [PROPERTY])
        self.administration.call("change_properties", topic=str(topic), new=new, clear=clear)


def check(written: str) -> str:
    """Return what a form says is masked, without blanks at its ends; "": all.

    Raises BadRequestError for what cannot be read: it would mask all.
    """
    words = written.strip()
    if len(words) > MAX_WRITTEN:
        raise BadRequestError(f"mask: expected at most {MAX_WRITTEN} characters.")
    if words and _WHOLE not in words and Mask.read(words) == HIDE_ALL:
        found = quoted(words, 40)
        raise BadRequestError(f"mask: expected paths such as $.card, $.items[*].id, not {found}.")
    return words


def _masked(value: bytes, paths: Sequence[tuple[Step, ...]]) -> bytes:
    if paths:
        try:
            found = json.loads(value.decode(), parse_constant=_no_constant)
            for steps in paths:
                found = _without(found, steps)
            if found != MASKED:
                return json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            pass
    return MASKED.encode()


def _without(value: Any, steps: tuple[Step, ...]) -> Any:
    """Return JSON with what a path leads to masked, or what it cannot be followed into."""
    if not steps:
        return MASKED
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict) and not isinstance(step, int):
        names = list(value) if step is None else [step] if step in value else []
        for name in names:
            value[name] = _without(value[name], rest)
        return value
    if isinstance(value, list) and not isinstance(step, str):
        chosen = range(len(value)) if step is None else range(len(value))[step : step + 1]
        for index in chosen:
            value[index] = _without(value[index], rest)
        return value
    return MASKED


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
