"""The options and columns of Spark's Kafka connector, as other names for those of the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.errors import SettingError

KAFKA_COLUMNS: Final = "kafka"
"""The option `columns` for the columns of Spark's Kafka connector."""

_SYNONYMS: Final = {
    "subscribe": "topics",
    "subscribepattern": "pattern",
    "startingoffsets": "starting",
    "startingtimestamp": "starting",
    "endingoffsets": "ending",
    "endingtimestamp": "ending",
    "maxoffsetspertrigger": "max_rows",
    "failondataloss": "on_loss",
}
_LOSSES: Final = {"true": "fail", "false": "skip"}
_WORDS_OF: Final = {
    "startingoffsets": ("earliest", "latest"),
    "endingoffsets": ("latest",),
    "includeheaders": ("true", "false"),
}
"""The connector takes these words in any case."""


def translated(given: Mapping[str, str]) -> dict[str, str]:
    """Return options, their names in lower case, by the names of the source; raise SettingError."""
    found: dict[str, str] = {}
    said: dict[str, str] = {}
    for name, text in given.items():
        own = _SYNONYMS.get(name, name)
        if own in found:
            raise SettingError(f"the options {said[own]} and {name} say the same: give one of them")
        found[own], said[own] = _value(name, text), name
    return found


def _value(name: str, text: str) -> str:
    """Return the value of an option as the source has it."""
    if name.endswith("timestamp") and not (text.isascii() and text.isdigit()):
        raise SettingError(f"{name} = {text!r}: expected a time in ms since 1970")
    if name == "failondataloss":
        if text.lower() not in _LOSSES:
            raise SettingError(f"{name} = {text!r}: expected true or false")
        return _LOSSES[text.lower()]
    if name.endswith("ingoffsets") and text.isdigit():
        when = name.replace("offsets", "Timestamp")
        raise SettingError(f"{name} = {text!r}: offsets are a JSON object; a time is {when}")
    if name in _WORDS_OF and text.lower() in _WORDS_OF[name]:
        return text.lower()
    return text
