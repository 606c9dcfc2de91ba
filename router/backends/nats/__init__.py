"""The streams of a NATS server as topics that can be read, which is what `router copy` does."""

from __future__ import annotations

from router.backends import Backend
from router.backends.nats.source import NatsSource
from router.settings import Settings

__all__ = ["NatsSource", "open_source"]


def open_source(url: str, settings: Settings) -> Backend:
    """Return the streams of a server; nothing is asked of it yet. Raises SettingError."""
    return NatsSource(url, settings.text("names.tenant"), settings.text("names.namespace"))
