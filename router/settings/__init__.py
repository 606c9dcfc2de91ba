"""The settings in force, and where each value came from.

Values come from the built-in defaults (`table`), then a configuration file (INI, `section.key` is
the setting's name), then `ROUTER_SECTION_KEY` variables, then command-line flags; the last one
wins. An unknown key in the file or an unknown ROUTER_ variable stops the start.
"""

from __future__ import annotations

import configparser
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from router.errors import SettingError
from router.errors.quoting import nearest
from router.model import TopicName
from router.settings.parsing import duration, size
from router.settings.setting import Setting
from router.settings.table import BY_NAME, SETTINGS

__all__ = [
    "BY_NAME",
    "DEFAULT",
    "MASK",
    "SECRETS",
    "SETTINGS",
    "Setting",
    "Settings",
    "Value",
    "config_file",
    "duration",
    "environment",
    "load",
    "readable_secrets",
    "shown",
    "size",
    "variable",
    "without_password",
]

DEFAULT: Final = "default"
CONFIG: Final = "ROUTER_CONFIG"
ORIGINS: Final = "ROUTER_ORIGINS"
"""JSON: the origins of values that a process is handed by `environment`."""


NO_SETTINGS: Final = frozenset(
    {CONFIG, ORIGINS, "ROUTER_CONTEXT", "ROUTER_PASSWORD", "ROUTER_TOKEN"}
)
"""Variables that are no setting; the last three say which router elsewhere commands use as whom."""
MASK: Final = "***"
SECRETS: Final = frozenset(
    {"auth.admin_secret", "kafka.password", "pulsar.token", "zookeeper.digest"}
)
# user:password@ or token@ before a host, whatever is in it that should have been escaped, up to
# another URL that a query names; and what a query gives to names such as password, token, secret.
_USER: Final = r"(?:(?<=//)|^(?![a-z+]+://))"
_URL_PASSWORD: Final = re.compile(_USER + r"([^/?#@:]*:)(?:(?!=[a-z+]+://).)*@", re.S)
_URL_TOKEN: Final = re.compile(_USER + r"[^/?#@:]+@")
_QUERY_SECRET: Final = re.compile(
    r"((?:^|[?&])[^=&?]*(?:pass|secret|token|key)[^=&]*=)[^&#]+", re.I
)


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

    def replaced(self, origin: str, **given: str) -> Settings:
        """Return these settings with others for some; `__` in a name stands for the dot."""
        names = {name.replace("__", "."): text for name, text in given.items()}
        changed = {name: _value(BY_NAME[name], text, origin) for name, text in names.items()}
        return Settings(self.values | changed)

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

    def topic(self, name: str) -> TopicName:
        """Return the topic of a name, local or full; raise BadNameError."""
        return TopicName.parse(name, self.text("names.tenant"), self.text("names.namespace"))

    def shortest_name(self, topic: TopicName) -> str:
        """Return the shortest name by which `topic` finds it again."""
        return topic.local if self.topic(topic.local) == topic else str(topic)

    def words(self, name: str) -> tuple[str, ...]:
        """Return a setting that is a list."""
        return cast("tuple[str, ...]", self.values[name].value)


def config_file(environ: Mapping[str, str], given: Path | None = None) -> Path | None:
    """Return the one given, else $ROUTER_CONFIG (empty: none), else config/router.cfg if there."""
    if given is not None:
        return given
    if CONFIG in environ:
        return Path(environ[CONFIG]) if environ[CONFIG] else None
    usual = Path("config/router.cfg")
    return usual if usual.exists() else None


def variable(name: str) -> str:
    """Return the environment variable of a setting: `server.port` is ROUTER_SERVER_PORT."""
    return "ROUTER_" + name.replace(".", "_").upper()


def environment(settings: Settings) -> dict[str, str]:
    """Return the variables by which another process of the router loads these very settings.

    Every value that is no default travels, with its origin, so no file is read a second time (an
    empty ROUTER_CONFIG says so): it may have changed meanwhile.
    """
    given = {name: v for name, v in settings.values.items() if v.origin != DEFAULT}
    variables = {variable(name): value.text for name, value in given.items()}
    # Not by orjson: the name of a file may be of bytes that are no UTF-8.
    origins = json.dumps({name: value.origin for name, value in given.items()})
    return variables | {CONFIG: "", ORIGINS: origins}


def load(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str] | None = None
) -> Settings:
    """Read all sources in order; raise SettingError for unknown keys and bad values."""
    values = {s.name: _value(s, s.default, DEFAULT) for s in SETTINGS}
    if file is not None:
        values |= _from_file(file)
    values |= _from_variables(environ)
    for name, given in (flags or {}).items():
        values[name] = _value(_known(name, "flags"), given, "command line")
    return Settings(values)


def readable_secrets(settings: Settings) -> list[str]:
    """Return a sentence for each secret that a file has which all users of the machine can read."""
    found = []
    for name, value in settings.values.items():
        is_secret = (name in SECRETS and value.text) or without_password(value.text) != value.text
        if is_secret and _is_readable(value.origin):
            found.append(
                f"all users of this machine can read {name} in {value.origin}:"
                f" chmod o-r {value.origin}"
            )
    return found


def _is_readable(origin: str) -> bool:
    """Return whether a value came from a file that all users can read."""
    try:
        return bool(Path(origin).stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def _value(setting: Setting, given: str, origin: str) -> Value:
    try:
        return Value(setting.parse(given), given, origin)
    except ValueError as error:
        raise SettingError(f"{origin}: {setting.name} = {given!r}: {error}") from error


def _known(name: str, origin: str) -> Setting:
    if name not in BY_NAME:
        raise SettingError(f"{origin}: there is no setting {name!r}{nearest(name, BY_NAME)}")
    return BY_NAME[name]


def _from_file(file: Path) -> dict[str, Value]:
    parser = configparser.ConfigParser(interpolation=None, default_section="no defaults")
    try:
        parser.read_string(file.read_text(encoding="utf-8"), source=str(file))
    except OSError as error:
        raise SettingError(f"{file}: {error.strerror or error}") from error
    except (UnicodeDecodeError, configparser.Error) as error:
        raise SettingError(f"{file}: {' '.join(str(error).split())}") from error
    return {
        f"{section}.{key}": _value(_known(f"{section}.{key}", str(file)), given, str(file))
        for section in parser.sections()
        for key, given in parser.items(section)
    }


def _from_variables(environ: Mapping[str, str]) -> dict[str, Value]:
    names = {variable(name): name for name in BY_NAME}
    found, origins = {}, _origins(environ.get(ORIGINS, "{}"))
    keys = {key for key in environ if key.startswith("ROUTER_")} - NO_SETTINGS
    for key in sorted(keys):
        if key not in names:
            raise SettingError(f"environment: there is no variable {key}{nearest(key, names)}")
        name = names[key]
        origin = origins.get(name, f"variable {key}")
        found[name] = _value(BY_NAME[name], environ[key], origin)
    return found


def _origins(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise SettingError(f"environment: {ORIGINS} is set by the router itself: unset it")
    return found


def without_password(url: str) -> str:
    """Return a URL with *** for the password of its user and for secrets in its query."""
    url = _URL_TOKEN.sub(f"{MASK}@", _URL_PASSWORD.sub(rf"\1{MASK}@", url))
    return _QUERY_SECRET.sub(rf"\1{MASK}", url)


def shown(name: str, text: str) -> str:
    """Return a setting's text as it may be shown: *** for secrets."""
    if name in SECRETS:
        return MASK if text else ""
    return without_password(text) if name == "backend.url" else text
