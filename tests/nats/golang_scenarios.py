"""What the scenarios of the program in Go show on nats-server; golang/scenarios_*.go has them."""

from __future__ import annotations

from typing import Any, Final

GO_SCENARIOS: Final[dict[str, Any]] = {}
