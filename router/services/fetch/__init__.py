"""Consumers that fetch and acknowledge in calls of their own, as PIP 64 has them."""

from __future__ import annotations

from router.services.fetch.consumers import (
    NO_SCHEMA,
    Consumers,
    FetchOptions,
    Member,
    ReadSchema,
)
from router.services.fetch.fetcher import Fetcher, FetchingConsumer

__all__ = [
    "NO_SCHEMA",
    "Consumers",
    "FetchOptions",
    "Fetcher",
    "FetchingConsumer",
    "Member",
    "ReadSchema",
]
