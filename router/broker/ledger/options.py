"""Owns the options of the store, and how settings become them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.broker import descriptors
from router.settings import Settings

Clock = Callable[[], float]
"""Seconds since 1970, as `time.time` counts them."""

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What settings say about storage; sizes in bytes, times in milliseconds, -1: no bound."""

    segment: int = 64 << 20
    journal: int = 64 << 20
    cache: int = 64 << 20
    reserve: int = 64 << 20
    relaxed: bool = False
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    backlog_bytes: int = -1
    dedup_window_ms: int = DAY_MS
    dedup_producers: int = 100_000
    unsynced: int = 32 << 20
    open_files: int = 512
    index_step: int = 64 << 10

    @classmethod
    def from_settings(cls, settings: Settings) -> StoreOptions:
        """Return the options that the settings in force ask for."""
        return cls(
            segment=settings.number("storage.segment"),
            journal=settings.number("storage.journal"),
            cache=settings.number("storage.cache"),
            reserve=settings.number("storage.reserve"),
            relaxed=settings.flag("storage.relaxed"),
            retention_ms=round(settings.seconds("retention.time") * 1000),
            retention_bytes=settings.number("retention.size"),
            backlog_bytes=settings.number("retention.backlog"),
            dedup_window_ms=round(settings.seconds("dedup.window") * 1000),
            dedup_producers=settings.number("dedup.max_producers"),
            open_files=descriptors.for_segments(),
        )
