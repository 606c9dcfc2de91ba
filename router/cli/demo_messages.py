"""The messages of the demo: what a shop with a warehouse would send, the same for the same seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any, Final

from router.model import Message

CUSTOMERS: Final = (
    *("anna", "bob", "carol", "dmitri", "elif", "farah", "goran", "hana", "ines", "jonas"),
    *("kaori", "luca", "maria", "noor", "olga", "pedro"),
)
_COUNTRIES: Final = ("FI", "DE", "FR", "PT", "TR", "JP")
_ITEMS: Final = {"tea": 450, "kettle": 3990, "cup": 890, "honey": 720, "teapot": 2750}
_PAGES: Final = ("/", "/tea", "/kettles", "/basket", "/checkout", "/account")
_DEVICES: Final = ("gate", "shelf-1", "shelf-2", "cellar")
_FIRST_ORDER: Final = 1000
_UNREADABLE: Final = 0.03
"""Of the orders, the share that billing cannot read."""
_DELETED: Final = 0.15
"""Of the changes of customers, the share that are tombstones."""


class DemoMessages:
    """Makes messages one after the other."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - it guards nothing
        self._orders = _FIRST_ORDER

    def order(self) -> Message:
        """Return the next order: JSON with a customer as key; some are cut off or lack a field."""
        random, self._orders = self._random, self._orders + 1
        customer = random.choice(CUSTOMERS)
        items = random.sample(sorted(_ITEMS), random.randint(1, 3))
        counts = {item: random.randint(1, 4) for item in items}
        order: dict[str, Any] = {
            "id": self._orders,
            "customer": customer,
            "country": random.choice(_COUNTRIES),
            "lines": [{"item": item, "count": number} for item, number in counts.items()],
            "cents": sum(_ITEMS[item] * number for item, number in counts.items()),
            "express": random.random() < 0.2,
        }
        text = _text(order)
        if random.random() < _UNREADABLE:
            del order["cents"]
            text = random.choice((text[:40], _text(order)))
        channel = random.choice(("web", "app", "shop"))
        return Message(text, customer.encode(), {"channel": channel, "schema": "order-2"})

    def click(self) -> Message:
        """Return a visit of a page: JSON without a key."""
        random = self._random
        click = {
            "page": random.choice(_PAGES),
            "visitor": f"v{random.randint(100, 999)}",
            "ms": round(random.lognormvariate(3.5, 0.7)),
        }
        return Message(_text(click))

    def customer(self) -> Message:
        """Return a change of a customer, by key: the new state in JSON, or a tombstone."""
        random = self._random
        name = random.choice(CUSTOMERS)
        if random.random() < _DELETED:
            return Message(b"", name.encode(), null=True)
        state = {
            "name": name.title(),
            "orders": random.randint(1, 90),
            "points": random.randint(0, 900),
        }
        return Message(_text(state), name.encode())

    def reading(self) -> tuple[str, bytes]:
        """Return the end of a subject, DEVICE.temperature, and what the device measured."""
        random = self._random
        device = random.choice(_DEVICES)
        middle = 4.0 if device == "cellar" else 19.0
        reading = {
            "celsius": round(random.gauss(middle, 0.8), 1),
            "battery": random.randint(20, 100),
        }
        return f"{device}.temperature", _text(reading)


def unreadable(value: bytes) -> str:
    """Return why billing cannot read an order; empty: it can."""
    try:
        order = json.loads(value)
    except ValueError:
        return "no JSON: the text ends too early"
    return "" if "cents" in order else "cents: missing"


def _text(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()
