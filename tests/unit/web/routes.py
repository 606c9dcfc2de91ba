"""All routes of the application, as requests to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flask import Flask

VALUES: Final = {
    "topic": "t",
    "tenant": "public",
    "namespace": "default",
    "group": "g",
    "consumer": "c",
    "partition": "0",
    "subscription": "s",
    "bits": "24",
    "ip": "10.0.0.0",
}


def requests(app: Flask) -> Iterator[tuple[str, str]]:
    """Yield method and path of each route, HEAD included; OPTIONS tells what there is."""
    for rule in app.url_map.iter_rules():
        built = rule.build({name: VALUES.get(name, "x") for name in rule.arguments})
        assert built is not None, rule.rule
        for method in sorted((rule.methods or set()) - {"OPTIONS"}):
            yield method, built[1]
