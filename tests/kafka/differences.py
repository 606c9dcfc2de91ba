"""The differences between the router's Kafka listener and Apache Kafka that clients observe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Difference:
    """What a scenario shows on our broker, and why that is so."""

    ours: Any
    why: str


DIFFERENCES: Final[dict[str, Difference]] = {}
QUIRKS: Final[dict[tuple[str, str], Any]] = {
    # reads empty keys, values and headers as null
    ("kafka-go", "everything_of_a_record"): [0, 1],
}
"""What one client shows on every broker where all others show something else."""
