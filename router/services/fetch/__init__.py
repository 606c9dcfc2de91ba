"""Consumers that fetch and acknowledge in calls of their own, as PIP 64 has them."""

from __future__ import annotations

from router.services.fetch.consumers import Consumers, FetchOptions, Member
from router.services.fetch.fetcher import Fetcher

__all__ = ["Consumers", "FetchOptions", "Fetcher", "Member"]
