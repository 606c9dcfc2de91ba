"""What the scenarios of the program in JavaScript show on nats-server; javascript/ has them."""

from __future__ import annotations

from typing import Any, Final

JAVASCRIPT_SCENARIOS: Final[dict[str, Any]] = {
    "js_core": {"answer": "pong ping", "headers": [["1", "2"]], "silent": True},
    "js_direct": {
        "batch": ["4 4", "5 5", "6 6"],
        "last": ["7 7", "8 8", "9 9"],
        "one": "7",
    },
    "js_key_values": {
        "exists": 10071,
        "gone": "DEL",
        "history": ["1", "2"],
        "keys": ["k", "other.key"],
        "old": "1",
        "revisions": [1, 2, 3],
        "stale": 10071,
        "values": 4,
    },
    "js_keys_that_expire": {"marker": 1000, "seen": ["k PUT 1 1", "k PURGE  2", "k PUT 2 3"]},
    "js_objects": {"chunks": 7, "gone": True, "list": ["large"], "same": True},
    "js_ordered": [1, 3, 5, 7, 9, 11, 13, 15, 17, 19],
    "js_pulled": {"floor": 200, "sum": 20100, "twice": True, "waiting": 0},
}
