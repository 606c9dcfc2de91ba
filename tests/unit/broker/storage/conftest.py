"""Stores are tested on folders in memory."""

from __future__ import annotations

import pytest

from router.broker.storage import recovery
from tests.unit.broker.in_memory import folder

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def joins_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have recovery write tails away between few commit groups, as it does with large ones."""
    monkeypatch.setattr(recovery, "JOINED_BYTES", 1_000)
