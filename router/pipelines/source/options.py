"""What a source is told: read from a declaration or from the options of a Spark reader or writer.

The settings of the store travel as one option whose name Spark takes for a secret's, so that no
plan, log or page of Spark's shows a token or a password. Options that are settings by their own
names (`pulsar.token_file`) count as well: who writes `spark.read` by hand need not write JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from router.backends import Backend
from router.backends.opening import open_backend, open_node, scheme
from router.errors import SettingError
from router.model import TopicName
from router.settings import BY_NAME, Settings, load

if TYPE_CHECKING:
    from router.pipelines.declaration import SourceSpec

EMBEDDED: Final = "embedded"
SECRET: Final = "settings.secret"  # noqa: S105 - the name of an option
KINDS: Final = ("embedded", "pulsar", "pulsar+ssl", "kafka")
STARTS: Final = ("earliest", "latest")
LOSSES: Final = ("fail", "skip")
DEAD: Final = ("read", "skip")
_OWN: Final = frozenset(
    {
        "url",
        "topics",
        "topic",
        "path",
        "pattern",
        "dead_letters",
        "starting",
        "max_rows",
        "on_loss",
        SECRET,
    }
)


@dataclass(frozen=True, slots=True)
class Options:
    """A source, or what is written to: which store, which topics, and how it is read.

    `starting` is earliest, latest or ms since 1970; `max_rows` 0: no bound of a batch. `topic` is
    where rows without a topic of their own are written. `skip_dead`: a pattern passes over
    `<topic>.dlq` where it finds the topic.
    """

    settings: Settings
    given: Mapping[str, str]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    starting: str = "earliest"
    max_rows: int = 0
    skip: bool = False
    topic: str = ""
    skip_dead: bool = False

    @property
    def kind(self) -> str:
        """Return which kind of store it is: the scheme of its URL."""
        return scheme(self.settings)

    @classmethod
    def of_source(cls, source: SourceSpec) -> Options:
        """Read a declared source; raise SettingError."""
        told = {
            "url": source.url,
            "topics": ",".join(source.topics),
            "pattern": source.pattern,
            "dead_letters": DEAD[source.skip_dead],
            "starting": source.starting,
            "max_rows": str(source.max_rows),
            "on_loss": source.on_loss,
            SECRET: json.dumps(dict(source.settings)),
        }
        return cls.of_texts({name: text for name, text in told.items() if text})

    @classmethod
    def of_texts(cls, texts: Mapping[str, str]) -> Options:
        """Read the options of a Spark reader or writer; raise SettingError."""
        # Spark's names of options have no case.
        given = {name.lower(): text for name, text in texts.items()}
        plain = {name: text for name, text in given.items() if name in BY_NAME}
        if unknown := given.keys() - plain.keys() - _OWN:
            raise SettingError(f"the source has no option {min(unknown)!r}; {_KNOWN}")
        settings = _settings(given.get("url", ""), {**_secret(given.get(SECRET, "{}")), **plain})
        kind = scheme(settings)
        if kind not in KINDS:
            raise SettingError(
                f"a pipeline reads and writes {', '.join(KINDS)}; {kind!r} is not among them"
            )
        return cls(
            settings,
            given,
            tuple(word for word in map(str.strip, given.get("topics", "").split(",")) if word),
            given.get("pattern", ""),
            _one(given, "starting", STARTS, numeric=True),
            _number(given, "max_rows"),
            _one(given, "on_loss", LOSSES) == "skip",
            given.get("topic", given.get("path", "")),
            _one(given, "dead_letters", DEAD) == "skip",
        )

    def texts(self) -> dict[str, str]:
        """Return the options of a Spark reader that say the same."""
        return dict(self.given)

    def of_reading(self) -> Options:
        """Return these options if they say what to read; raise SettingError."""
        if bool(self.topics) == bool(self.pattern):
            raise SettingError("a source has either topics or a pattern of their names")
        for name in self.topics:
            self.topic_named(name)
        return self

    def topic_named(self, name: str) -> TopicName:
        """Return the topic of a name, local or full; raise BadNameError."""
        return TopicName.parse(
            name, self.settings.text("names.tenant"), self.settings.text("names.namespace")
        )

    def shown(self, topic: TopicName) -> str:
        """Return the shortest name by which `topic_named` finds it again."""
        return topic.local if self.topic_named(topic.local) == topic else str(topic)

    @contextmanager
    def opened(self) -> Iterator[Backend]:
        """Open a connection to the store for as long as it is needed."""
        with (
            closing(open_node(self.settings)) as node,
            closing(open_backend(self.settings, node)) as backend,
        ):
            yield backend


_KNOWN: Final = (
    "there are url, topics, pattern, dead_letters, starting, max_rows, on_loss, topic and the"
    " router's settings"
)


def _settings(url: str, given: Mapping[str, str]) -> Settings:
    flags = dict(given)
    kind, _, folder = url.partition(":")
    if kind == EMBEDDED:
        flags["backend.url"] = EMBEDDED
        if folder:
            flags["data.dir"] = folder
    elif url:
        flags["backend.url"] = url
    return load(None, {}, flags)


def _secret(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SettingError(f"{SECRET} is no JSON object of settings: {error}") from error
    if not isinstance(found, dict):
        raise SettingError(f"{SECRET} is no JSON object of settings")
    return {str(name): str(value) for name, value in found.items()}


def _one(
    given: Mapping[str, str], name: str, known: tuple[str, ...], *, numeric: bool = False
) -> str:
    value = given.get(name, known[0])
    if value in known or (numeric and value.isascii() and value.isdigit()):
        return value
    also = " or a time in ms since 1970" if numeric else ""
    raise SettingError(f"{name} = {value!r}: expected {' or '.join(known)}{also}")


def _number(given: Mapping[str, str], name: str) -> int:
    value = given.get(name, "0")
    if not (value.isascii() and value.isdigit()):
        raise SettingError(f"{name} = {value!r}: expected a number of rows")
    return int(value)
