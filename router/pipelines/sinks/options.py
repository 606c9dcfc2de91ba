"""What a declaration may say about a sink of kind topic, and how long its store remembers."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from router.backends.opening import scheme
from router.errors import SettingError
from router.pipelines.declaration import SinkSpec
from router.settings import Settings, duration

# Apache Pulsar's brokerDeduplicationProducerInactivityTimeoutMinutes, Kafka's
# offsets.retention.minutes, as both come.
_PULSAR: Final = 6 * 3600.0
_KAFKA: Final = 7 * 86_400.0
_PUBLISH: Final = {"fail": False, "publish": True}


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """The options of a topic.

    `patience`: seconds for which a failure that may pass is waited out. `remembered`: seconds after
    which the store may have forgotten what it has of a batch. `publish_forgotten`: a batch that was
    broken off longer ago is published all the same.
    """

    patience: float
    remembered: float
    publish_forgotten: bool

    @classmethod
    def of(cls, sink: SinkSpec, settings: Settings) -> TopicOptions:
        """Read them; raise SettingError for others, and for values that none can have."""
        known = {"patience", "remembered", "on_forgotten"}
        for name in sink.options:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = (
                    f" Did you mean {near[0]}?" if near else f" Known: {', '.join(sorted(known))}."
                )
                raise SettingError(f"sink {sink.name}: a topic has no option {name!r}.{hint}")
        return cls(
            _read(sink, "patience", duration, 120.0),
            _read(sink, "remembered", duration, _remembered(settings)),
            _read(sink, "on_forgotten", _PUBLISH.__getitem__, False),
        )


def _remembered(settings: Settings) -> float:
    """Return how long the store remembers, unless it was set up otherwise."""
    kind = scheme(settings)
    if kind == "kafka":
        return _KAFKA
    return _PULSAR if kind.startswith("pulsar") else settings.seconds("dedup.window")


def _read(sink: SinkSpec, name: str, parse: Callable[[str], Any], default: Any) -> Any:
    text = sink.options.get(name)
    if text is None:
        return default
    try:
        return parse(text)
    except (ValueError, KeyError) as error:
        wanted = "fail or publish" if name == "on_forgotten" else "a duration such as 90s or 12h"
        raise SettingError(f"sink {sink.name}: {name} = {text!r} has to be {wanted}.") from error
