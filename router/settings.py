"""Every setting, once: its name, parser, default and sentence; and where each value came from.

Values come from the built-in defaults, then a configuration file (INI, `section.key` is the
setting's name), then `ROUTER_SECTION_KEY` variables, then command-line flags; the last one wins.
An unknown key in the file or an unknown ROUTER_ variable stops the start. `docs/settings.md` is
generated from SETTINGS.
"""

from __future__ import annotations

import configparser
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from router.errors import SettingError

_SIZES = {
    "": 1,
    "b": 1,
    "k": 1024,
    "kib": 1024,
    "m": 1 << 20,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gib": 1 << 30,
}
_TIMES = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `parse` turns text into its value and raises ValueError."""

    name: str
    parse: Callable[[str], Any]
    default: str
    sentence: str


def text(value: str) -> str:
    """Any text."""
    return value


def flag(value: str) -> bool:
    """Yes or no: true/false, yes/no, on/off, 1/0."""
    folded = value.strip().lower()
    if folded in {"true", "yes", "on", "1"}:
        return True
    if folded in {"false", "no", "off", "0"}:
        return False
    raise ValueError("expected true or false")


def count(value: str) -> int:
    """Whole number, not negative."""
    number = int(value)
    if number < 0:
        raise ValueError("expected a number that is not negative")
    return number


def bound(value: str) -> int:
    """Size as for other bytes, or -1: without bound."""
    return -1 if value.strip() == "-1" else size(value)


def size(value: str) -> int:
    """Bytes, with K, M or G (powers of 1024)."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip().lower())
    if match is None or match[2] not in _SIZES:
        raise ValueError("expected bytes, such as 65536, 64K, 32M or 1G")
    return int(match[1]) * _SIZES[match[2]]


def duration(value: str) -> float:
    """Seconds, with ms, s, m, h or d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.strip().lower())
    if match is None or match[2] not in _TIMES:
        raise ValueError("expected a duration, such as 250ms, 15s, 10m, 12h or 7d")
    return float(match[1]) * _TIMES[match[2]]


def listed(value: str) -> tuple[str, ...]:
    """Words separated by commas or white space."""
    return tuple(word for word in re.split(r"[,\s]+", value) if word)


def one_of(*words: str) -> Callable[[str], str]:
    """One of a few words."""

    def parse(value: str) -> str:
        if value not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return value

    parse.__doc__ = "One of " + ", ".join(f"`{word}`" for word in words) + "."
    return parse


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("server.host", text, "127.0.0.1", "Address that the HTTP server listens on."),
    Setting("server.port", count, "3904", "Port that the HTTP server listens on."),
    Setting("server.workers", count, "0", "Worker processes; 0: one for each usable CPU."),
    Setting(
        "server.worker_class",
        one_of("gevent", "gthread"),
        "gevent",
        "Kind of gunicorn worker; gthread is the fallback without gevent.",
    ),
    Setting("server.connections", count, "10000", "Connections that one worker holds at most."),
    Setting(
        "server.graceful_timeout",
        duration,
        "10s",
        "Time that requests under way have to end when the server stops.",
    ),
    Setting("server.help_url", text, "http://onap.readthedocs.io", "The helpURL of error answers."),
    Setting("data.dir", text, "data", "Folder of the node's broker: log, metadata, socket."),
    Setting(
        "backend.url",
        text,
        "embedded",
        "Where messages live: `embedded`, `memory`, or `pulsar://host:port`.",
    ),
    Setting("backend.timeout", duration, "15s", "Time that the backend has to answer one call."),
    Setting("names.tenant", text, "public", "Pulsar tenant of topics with a local name."),
    Setting("names.namespace", text, "default", "Pulsar namespace of topics with a local name."),
    Setting(
        "names.max_length",
        count,
        "249",
        "Longest topic name that HTTP accepts; the original guide says 40.",
    ),
    Setting(
        "auth.users",
        text,
        "",
        "htpasswd file of the users; empty: everybody is anonymous, on loopback only.",
    ),
    Setting(
        "auth.permissions",
        text,
        "",
        "File of permissions; empty: every known user may do everything.",
    ),
    Setting("auth.insecure", flag, "false", "Serve anonymously on addresses other than loopback."),
    Setting("auth.cache", duration, "60s", "How long a verified password is remembered."),
    Setting(
        "auth.attempts_per_minute",
        count,
        "30",
        "Password checks a minute for one user and address; 0: no limit.",
    ),
    Setting(
        "auth.forbidden_status",
        one_of("401", "403"),
        "403",
        "Status of answers to users without the right.",
    ),
    Setting("cors.origins", listed, "", "Origins whose pages may publish and poll; `*` for all."),
    Setting(
        "topics.auto_create", flag, "true", "Create a topic when somebody publishes to it first."
    ),
    Setting(
        "topics.auto_partitions",
        count,
        "0",
        "Partitions of topics created that way; 0: not partitioned.",
    ),
    Setting("publish.max_message", size, "1000000", "Largest message."),
    Setting("publish.max_batch", size, "32M", "Largest body, after decompression."),
    Setting("publish.max_messages", count, "100000", "Most messages of one body."),
    Setting(
        "publish.max_ratio", count, "200", "Largest ratio by which a compressed body may grow."
    ),
    Setting("publish.timeout", duration, "30s", "Time after which a publish is answered with 504."),
    Setting(
        "consume.timeout", duration, "10s", "How long a poll without `timeout` waits for a message."
    ),
    Setting("consume.max_timeout", duration, "2m", "Longest wait that a poll may ask for."),
    Setting("consume.limit", count, "4096", "Most messages that one poll answers."),
    Setting("consume.max_bytes", size, "16M", "Most bytes of messages that one poll answers."),
    Setting("consume.from", one_of("latest", "earliest"), "latest", "Where a new group starts."),
    Setting(
        "consume.idle",
        duration,
        "5s",
        "How long a consumer id keeps its partitions after its last poll.",
    ),
    Setting(
        "consume.empty_polls_per_minute",
        count,
        "10",
        "Polls without a message that one consumer id may make in a minute; 0: no limit.",
    ),
    Setting(
        "consume.limit_status",
        one_of("429", "503"),
        "429",
        "Status when there are more; the original's is 503.",
    ),
    Setting(
        "consume.unknown_topic",
        one_of("404", "create"),
        "404",
        "What a poll of an unknown topic does.",
    ),
    Setting("storage.segment", size, "64M", "Size at which a partition starts a new segment file."),
    Setting("storage.journal", size, "64M", "Size at which the journal is cut."),
    Setting("storage.cache", size, "64M", "Memory for the newest entries of all partitions."),
    Setting(
        "storage.reserve",
        size,
        "64M",
        "Free disk space below which publishing is refused while reading goes on.",
    ),
    Setting(
        "storage.relaxed",
        flag,
        "false",
        "Acknowledge before the data is on disk; a power cut then loses messages.",
    ),
    Setting("retention.time", duration, "7d", "How long messages are kept, acknowledged or not."),
    Setting("retention.size", bound, "-1", "Bytes of a partition that are kept; -1: no bound."),
    Setting(
        "retention.backlog",
        bound,
        "-1",
        "Bytes that wait for one group before the oldest go in spite of it; -1: no bound.",
    ),
    Setting(
        "retention.groups",
        duration,
        "7d",
        "Time after its last poll at which a group is forgotten.",
    ),
    Setting("retention.max_groups", count, "1000", "Groups that one topic may have."),
    Setting(
        "dedup.window",
        duration,
        "1d",
        "How long producers and idempotency keys are remembered after their last message.",
    ),
    Setting(
        "dedup.max_producers",
        count,
        "100000",
        "Producers and idempotency keys remembered for one partition; the oldest go first.",
    ),
    Setting(
        "broker.pulsar",
        text,
        "",
        "HOST:PORT where the broker serves Pulsar clients; empty: its socket only.",
    ),
    Setting(
        "broker.linger",
        duration,
        "5s",
        "How long a spawned broker stays after its last client left.",
    ),
    Setting(
        "broker.spawn",
        flag,
        "true",
        "Start a broker when none answers; `serve` says no to its workers, whose broker it starts.",
    ),
    Setting("broker.connections", count, "10000", "Connections that the broker holds at most."),
    Setting(
        "broker.ping",
        duration,
        "30s",
        "Time of silence after which the broker pings a client; twice that closes it.",
    ),
    Setting("log.level", one_of("debug", "info", "warning", "error"), "info", "What is logged."),
    Setting("log.format", one_of("json", "text"), "json", "Form of the log lines."),
)

BY_NAME: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value in force, its text, and where it came from."""

    value: Any
    text: str
    origin: str


class Settings:
    """The values in force; read with the method that names their type."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = dict(values)

    def get(self, name: str) -> Any:
        """Return the parsed value of a setting."""
        return self.values[name].value

    def text(self, name: str) -> str:
        """Return a setting that is text."""
        return cast(str, self.values[name].value)

    def number(self, name: str) -> int:
        """Return a setting that is a count or a size."""
        return cast(int, self.values[name].value)

    def seconds(self, name: str) -> float:
        """Return a setting that is a duration."""
        return cast(float, self.values[name].value)

    def flag(self, name: str) -> bool:
        """Return a setting that is true or false."""
        return cast(bool, self.values[name].value)

    def words(self, name: str) -> tuple[str, ...]:
        """Return a setting that is a list."""
        return cast("tuple[str, ...]", self.values[name].value)


def config_file(environ: Mapping[str, str], given: Path | None = None) -> Path | None:
    """Return the one given, else $ROUTER_CONFIG (empty: none), else config/router.cfg if there."""
    if given is not None:
        return given
    if "ROUTER_CONFIG" in environ:
        return Path(environ["ROUTER_CONFIG"]) if environ["ROUTER_CONFIG"] else None
    usual = Path("config/router.cfg")
    return usual if usual.exists() else None


def variable(name: str) -> str:
    """Return the environment variable of a setting: `server.port` is ROUTER_SERVER_PORT."""
    return "ROUTER_" + name.replace(".", "_").upper()


def load(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str] | None = None
) -> Settings:
    """Read all sources in order; raise SettingError for unknown keys and bad values."""
    values = {s.name: _value(s, s.default, "default") for s in SETTINGS}
    if file is not None:
        values |= _from_file(file)
    values |= _from_variables(environ)
    for name, given in (flags or {}).items():
        values[name] = _value(_known(name, "flags"), given, "command line")
    return Settings(values)


def _value(setting: Setting, given: str, origin: str) -> Value:
    try:
        return Value(setting.parse(given), given, origin)
    except ValueError as error:
        raise SettingError(f"{origin}: {setting.name} = {given!r}: {error}") from error


def _known(name: str, origin: str) -> Setting:
    if name not in BY_NAME:
        near = difflib.get_close_matches(name, BY_NAME, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingError(f"{origin}: there is no setting {name!r}{hint}")
    return BY_NAME[name]


def _from_file(file: Path) -> dict[str, Value]:
    parser = configparser.ConfigParser(interpolation=None, default_section="no defaults")
    try:
        parser.read_string(file.read_text(encoding="utf-8"), source=str(file))
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise SettingError(f"{file}: {error}") from error
    return {
        f"{section}.{key}": _value(_known(f"{section}.{key}", str(file)), given, str(file))
        for section in parser.sections()
        for key, given in parser.items(section)
    }


def _from_variables(environ: Mapping[str, str]) -> dict[str, Value]:
    names = {variable(name): name for name in BY_NAME}
    found = {}
    for key in sorted(k for k in environ if k.startswith("ROUTER_") and k != "ROUTER_CONFIG"):
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingError(f"environment: there is no variable {key}{hint}")
        found[names[key]] = _value(BY_NAME[names[key]], environ[key], f"variable {key}")
    return found
