"""Where clients of each protocol connect, and a line that shows it works."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from flask import request

from router.settings import Settings
from router.web.addresses import root
from router.web.console.commands import word

PROTOCOLS: Final = (
    (
        "Kafka",
        "broker.kafka",
        "broker.kafka_advertised",
        "{0}",
        "kcat -b {0} -t {1} -C -o beginning",
    ),
    (
        "NATS",
        "broker.nats",
        "broker.nats_advertised",
        "nats://{0}",
        "nats --server nats://{0} subscribe {1}",
    ),
    (
        "Pulsar",
        "broker.pulsar",
        "broker.advertised",
        "pulsar://{0}",
        "pulsar-client --url pulsar://{0} consume {1} -s billing -n 0",
    ),
)


def client_lines(settings: Settings, topic: str) -> list[dict[str, str]]:
    """Return of each protocol its `name`, `address`, a `line`, and where it is off the `setting`.

    `address` is empty where no client of the protocol is served.
    """
    http = root(request.environ)
    found = [
        {
            "name": "HTTP",
            "address": http,
            "line": f"curl -d 'hello' {word(f'{http}/events/{topic}')}",
            "setting": "",
        }
    ]
    for name, setting, advertised, form, line in PROTOCOLS:
        address = _address(settings.text(setting), settings.text(advertised))
        found.append(
            {
                "name": name,
                "address": form.format(address) if address else "",
                "line": line.format(address, topic) if address else "",
                "setting": setting,
            }
        )
    return found


def _address(listens: str, advertised: str) -> str:
    """Return host and port that a client takes, empty: none is served.

    The host is the one by which the browser reached the router, unless another is advertised.
    """
    if not listens:
        return ""
    if advertised:
        return advertised.partition(",")[0].partition("://")[2]
    host = urlsplit(root(request.environ)).hostname or "localhost"
    return f"{f'[{host}]' if ':' in host else host}:{listens.rpartition(':')[2]}"
