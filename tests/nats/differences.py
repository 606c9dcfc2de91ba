"""The differences between the router's NATS listener and nats-server that clients observe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Difference:
    """What a scenario shows on our broker, and why that is so.

    Of a recorded scenario `ours` holds only what differs, by its key or by the number of the step.
    """

    ours: Any
    why: str


DIFFERENCES: Final[dict[str, Difference]] = {}
