"""Compaction is tested on folders in memory."""

from tests.unit.broker.in_memory import folder

__all__ = ["folder"]
