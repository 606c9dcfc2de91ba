"""Options of a source: read from a declaration or from the options of a Spark reader or writer.

The settings of the store travel as one option whose name Spark takes for a secret's, so that no
plan, log or page of Spark's shows a token or a password. Options that are settings by their own
names (`pulsar.token_file`) count as well: who writes `spark.read` by hand need not write JSON.
The options of Spark's Kafka connector are synonyms of these (`translated`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Final

from router.backends import Backend
from router.backends.opening import opened, scheme
from router.backends.pulsar import PulsarBackend
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    CredentialsRefusedError,
    SettingError,
)
from router.node.spawn import REGISTRY, absent
from router.pipelines.source.offsets import (
    EARLIEST,
    FROM_EARLIEST,
    LATEST,
    TIME,
    TO_LATEST,
    Bound,
    Part,
)
from router.pipelines.source_columns import Layout
from router.settings import BY_NAME, Settings, load, without_password
from router.wire.nats.subjects import is_valid

if TYPE_CHECKING:
    from router.pipelines.declaration import SourceSpec

KAFKA_COLUMNS: Final = "kafka"
"""The option `columns` for the columns of Spark's Kafka connector."""
_SYNONYMS: Final = {
    "subscribe": "topics",
    "subscribepattern": "pattern",
    "startingoffsets": "starting",
    "startingtimestamp": "starting",
    "startingoffsetsbytimestamp": "starting",
    "endingoffsets": "ending",
    "endingtimestamp": "ending",
    "endingoffsetsbytimestamp": "ending",
    "minpartitions": "min_partitions",
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
    names: dict[str, str] = {}
    for name, text in given.items():
        own = _SYNONYMS.get(name, name)
        if own in found:
            raise SettingError(
                f"the options {names[own]} and {name} say the same: give one of them"
            )
        found[own], names[own] = _value(name, text), name
    return found


def _value(name: str, text: str) -> str:
    """Return the value of an option as the source has it."""
    if name.endswith("bytimestamp"):
        return _times(name, text)
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


def _times(name: str, text: str) -> str:
    """Return times by topic and partition as `Bound` has them; raise SettingError."""
    try:
        return json.dumps(
            {
                topic: {partition: f"{TIME}{int(ms)}" for partition, ms in partitions.items()}
                for topic, partitions in json.loads(text).items()
            }
        )
    except (ValueError, TypeError, AttributeError) as error:
        expected = 'expected times in ms since 1970, such as {"orders": {"0": 1790000000000}}'
        raise SettingError(f"{name} = {text!r}: {expected}") from error


EMBEDDED: Final = "embedded"
MEET_SECONDS: Final = 60.0
"""How long a broker that restarts is waited for when its identity is asked for."""
SECRET: Final = "settings.secret"  # noqa: S105 - the name of an option
KINDS: Final = ("embedded", "pulsar", "pulsar+ssl", "kafka")
LOSSES: Final = ("fail", "skip")
DEAD: Final = ("read", "skip")
COLUMN_NAMES: Final = ("router", KAFKA_COLUMNS)
FLAGS: Final = ("true", "false")
_OWN: Final = frozenset(
    {
        "url",
        "topics",
        "topic",
        "pattern",
        "assign",
        "min_partitions",
        "dead_letters",
        "key",
        "subject",
        "starting",
        "ending",
        "max_rows",
        "on_loss",
        "columns",
        "includeheaders",
        SECRET,
    }
)
# What Spark hands to every source and sink along with its options.
_OF_SPARK: Final = frozenset(
    {
        "path",
        "paths",
        "checkpointlocation",
        "queryname",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingcheckpointintervalms",
    }
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """A source, or what is written to: which store, which topics, and how it is read.

    `ending` is for a read that is no stream. `max_rows` 0: no bound of a batch. `path` is what
    `load` and `save` were given: topics of a reader, the topic of a writer. `topic` is where rows
    without a topic of their own are written. `skip_dead`: a pattern passes over `<topic>.dlq` where
    it finds the topic. `layout`: the columns of its rows. `broker` names the one that the driver
    has met, for tasks; empty: whichever answers. `assigned`: the partitions of the topics that
    are read; none: all. `min_partitions`: at least about as many tasks, for which ranges of a
    partition are divided. Rows are those of messages with this `key`, None: any, and with a subject
    of NATS that the pattern `subject` matches, empty: any.
    """

    settings: Settings
    given: Mapping[str, str]
    topics: tuple[str, ...] = ()
    pattern: str = ""
    starting: Bound = FROM_EARLIEST
    ending: Bound = TO_LATEST
    max_rows: int = 0
    skip: bool = False
    topic: str = ""
    skip_dead: bool = False
    path: tuple[str, ...] = ()
    layout: Layout = Layout.ROUTER
    broker: str = ""
    assigned: frozenset[Part] = frozenset()
    min_partitions: int = 0
    key: bytes | None = None
    subject: str = ""

    @property
    def kind(self) -> str:
        """Return which kind of store it is: the scheme of its URL."""
        return scheme(self.settings)

    @classmethod
    def of_source(cls, source: SourceSpec) -> SourceOptions:
        """Read a declared source; raise SettingError."""
        fields = {
            "url": source.url,
            "topics": ",".join(source.topics),
            "pattern": source.pattern,
            "dead_letters": DEAD[source.skip_dead],
            "subject": source.subject,
            "starting": source.starting,
            "max_rows": str(source.max_rows),
            "on_loss": source.on_loss,
            SECRET: json.dumps(dict(source.settings)),
        }
        given = {name: text for name, text in fields.items() if text}
        return cls.of_texts(given if source.key is None else {**given, "key": source.key})

    @classmethod
    def of_texts(cls, texts: Mapping[str, str]) -> SourceOptions:
        """Read the options of a Spark reader or writer; raise SettingError."""
        # Spark's names of options have no case.
        given = translated({name.lower(): text for name, text in texts.items()})
        plain = {name: text for name, text in given.items() if name in BY_NAME}
        if unknown := given.keys() - plain.keys() - _OWN - _OF_SPARK:
            raise SettingError(_unknown(min(unknown)))
        settings = _settings(given.get("url", ""), {**_secret(given.get(SECRET, "{}")), **plain})
        kind = scheme(settings)
        if kind not in KINDS:
            raise SettingError(
                f"a pipeline reads and writes {', '.join(KINDS)}; {kind!r} is not among them"
            )
        path = _path(given)
        assigned = _assigned(given.get("assign", "{}"), settings)
        if assigned and "topics" in given:
            raise SettingError("a source has either topics or partitions of topics (`assign`)")
        return cls(
            settings,
            given,
            tuple(sorted({part.topic for part in assigned})) or _words(given.get("topics", "")),
            given.get("pattern", ""),
            Bound.parse(
                "starting", given.get("starting", EARLIEST), (EARLIEST, LATEST), settings.topic
            ),
            Bound.parse("ending", given.get("ending", LATEST), (LATEST,), settings.topic),
            _number(given, "max_rows"),
            _one(given, "on_loss", LOSSES) == "skip",
            given.get("topic", path[0] if len(path) == 1 else ""),
            _one(given, "dead_letters", DEAD) == "skip",
            path,
            _layout(given),
            assigned=assigned,
            min_partitions=_number(given, "min_partitions"),
            key=given["key"].encode() if "key" in given else None,
            subject=_subject(given.get("subject", "")),
        )

    @contextmanager
    def opened(self) -> Iterator[Backend]:
        """Open the store, and close it at the end.

        Raises BackendUnavailableError if it is a folder of this machine that holds no data, unless
        a broker may be started there, and SettingError if it is not the driver's `broker`.
        """
        folder = Path(self.settings.text("data.dir"))
        spawns = self.settings.flag("broker.spawn")
        if self.kind == EMBEDDED and not spawns and not (folder / REGISTRY).exists():
            raise BackendUnavailableError(f"{absent(folder)}. It holds no data{self._elsewhere()}")
        with opened(self.settings) as (_, backend):
            if self.broker:
                self._check_broker(backend)
            yield backend

    def of_broker(self, backend: Backend) -> SourceOptions:
        """Return these options for tasks, which are to meet the broker of a backend; see `opened`.

        Raises BackendUnavailableError, BackendTimeoutError.
        """
        return replace(self, broker=history(backend))

    def _check_broker(self, backend: Backend) -> None:
        try:
            met = history(backend)
        except CredentialsRefusedError:
            raise
        except (BackendUnavailableError, BackendTimeoutError) as error:
            raise BackendUnavailableError(f"{error}{self._elsewhere()}") from error
        if met != self.broker:
            where = self.settings.text("data.dir" if self.kind == EMBEDDED else "backend.url")
            raise SettingError(
                f"{without_password(where)} is another router on the machine {gethostname()} than"
                f" on the driver's{self._elsewhere()}"
            )

    def _elsewhere(self) -> str:
        """Return what to do about a broker that tasks do not meet; nothing on the driver."""
        if not self.broker:
            return ""
        return (
            ". Tasks on other machines than the driver's reach its router by an address alone:"
            " start it with `--pulsar HOST:6650`, and name `pulsar://HOST:6650` as the url"
        )

    def attached(self) -> SourceOptions:
        """Return these options for processes that start no broker: executors, and all readers."""
        return replace(self, settings=self.settings.replaced("the source", broker__spawn="false"))

    def texts(self) -> dict[str, str]:
        """Return the options of a Spark reader that say the same."""
        return dict(self.given)

    def of_reading(self) -> SourceOptions:
        """Return these options if they say what to read; raise SettingError, BadNameError."""
        kinds = [bool(self.topics), bool(self.pattern), bool(self.path)]
        if sum(kinds) != 1:
            raise SettingError(
                "a source has either topics (`topics`, `subscribe`, or the argument of `load`)"
                " or a pattern of their names (`pattern`, `subscribePattern`)"
                " or partitions of topics (`assign`)"
            )
        read = replace(self, topics=self.topics or self.path)
        for name in read.topics:
            self.settings.topic(name)
        return read.attached()


def history(backend: Backend) -> str:
    """Return what names the broker of a backend, "": it is another product.

    Raises BackendUnavailableError, BackendTimeoutError.
    """
    return backend.history(MEET_SECONDS) if isinstance(backend, PulsarBackend) else ""


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in map(str.strip, text.split(",")) if word)


def _path(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that `load` or `save` was given, which Spark calls paths."""
    if "paths" not in given:
        return _words(given.get("path", ""))
    try:
        return tuple(map(str, json.loads(given["paths"])))
    except (ValueError, TypeError) as error:
        raise SettingError(f"paths = {given['paths']!r} is no JSON list of topics") from error


def _subject(text: str) -> str:
    if text and not is_valid(text):
        raise SettingError(f"subject = {text!r} is no subject of NATS, such as orders.*.new")
    return text


def _assigned(text: str, settings: Settings) -> frozenset[Part]:
    """Return the partitions that are assigned, as rows show them; raise SettingError."""
    try:
        return frozenset(
            Part(str(settings.topic(topic)), int(partition))
            for topic, partitions in json.loads(text).items()
            for partition in partitions
        )
    except (ValueError, TypeError, AttributeError) as error:
        expected = 'expected partitions by topic, such as {"orders": [0, 2]}'
        raise SettingError(f"assign = {text!r}: {expected}") from error


def _layout(given: Mapping[str, str]) -> Layout:
    """Return which columns are asked for; Kafka's have headers unless they are declined."""
    headers = _one(given, "includeheaders", FLAGS) == "true"
    if _one(given, "columns", COLUMN_NAMES) != KAFKA_COLUMNS:
        return Layout.ROUTER
    return Layout.KAFKA_WITH_HEADERS if headers else Layout.KAFKA


def _unknown(name: str) -> str:
    if name.startswith("kafka."):
        return f'{name} is an option of Spark\'s own Kafka connector: format("kafka")'
    names = sorted((_OWN - {SECRET, "includeheaders"}) | {"includeHeaders"})
    return (
        f"the source has no option {name!r}; there are {', '.join(names)},"
        " those of Spark's Kafka connector that mean the same, and the router's settings"
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
    settings = load(None, {}, flags)
    if scheme(settings) != EMBEDDED:
        return settings
    # Executors have other working directories than the driver, where options are read.
    data_dir = str(Path(settings.text("data.dir")).absolute())
    return settings.replaced(settings.values["data.dir"].origin, data__dir=data_dir)


def _secret(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SettingError(f"{SECRET} is no JSON object of settings: {error}") from error
    if not isinstance(found, dict):
        raise SettingError(f"{SECRET} is no JSON object of settings")
    return {str(name): str(value) for name, value in found.items()}


def _one(given: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    value = given.get(name, known[0])
    if value in known:
        return value
    raise SettingError(f"{name} = {value!r}: expected {' or '.join(known)}")


def _number(given: Mapping[str, str], name: str) -> int:
    value = given.get(name, "0")
    if not (value.isascii() and value.isdigit()):
        raise SettingError(f"{name} = {value!r}: expected a number of rows")
    return int(value)
