"""Options: dataclasses whose fields name the settings that they are read from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, field, fields
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from router.settings import Settings


def from_setting(
    name: str, convert: Callable[[Any], Any] | None = None, default: Any = MISSING
) -> Any:
    """Return a dataclass field of `SettingsOptions`; `convert` turns a setting into its value."""
    return field(default=default, metadata={"setting": name, "convert": convert})


def milliseconds(seconds: float) -> int:
    """Return a setting in seconds as milliseconds."""
    return round(seconds * 1000)


class SettingsOptions:
    """The base of dataclasses that are read from settings; other fields keep their defaults."""

    __slots__ = ()

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the values in force; raise SettingError where they do not go together."""
        given = {}
        for one in fields(cast("Any", cls)):
            if name := one.metadata.get("setting"):
                value, convert = settings.get(name), one.metadata["convert"]
                given[one.name] = value if convert is None else convert(value)
        return cls(**given)
