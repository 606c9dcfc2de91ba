"""Owns the options of the store, and how settings become them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from router.broker import descriptors
from router.settings import Settings
from router.settings.options import SettingsOptions, from_setting, milliseconds

Clock = Callable[[], float]
"""Seconds since 1970, as `time.time` counts them."""

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class StoreOptions(SettingsOptions):
    """What settings say about storage; sizes in bytes, times in milliseconds, -1: no bound."""

    segment: int = from_setting("storage.segment", default=64 << 20)
    journal: int = from_setting("storage.journal", default=64 << 20)
    cache: int = from_setting("storage.cache", default=64 << 20)
    reserve: int = from_setting("storage.reserve", default=64 << 20)
    relaxed: bool = from_setting("storage.relaxed", default=False)
    retention_ms: int = from_setting("retention.time", milliseconds, default=7 * DAY_MS)
    retention_bytes: int = from_setting("retention.size", default=-1)
    backlog_bytes: int = from_setting("retention.backlog", default=-1)
    dedup_window_ms: int = from_setting("dedup.window", milliseconds, default=DAY_MS)
    dedup_producers: int = from_setting("dedup.max_producers", default=100_000)
    unsynced: int = 32 << 20
    open_files: int = 512
    index_step: int = 16 << 10
    reclaim_bytes: int = 4 << 10

    @classmethod
    def from_settings(cls, settings: Settings) -> StoreOptions:
        """Return the options of the settings; open files follow the process's limit."""
        # By its name: the decorator makes another class of this one.
        found = super(StoreOptions, cls).from_settings(settings)
        return replace(found, open_files=descriptors.for_segments())
