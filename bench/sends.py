"""What one core of our broker carries: messages for each second of its processor time."""

from __future__ import annotations

import statistics

import uvloop

from bench import wire
from bench.pulsar import LARGER, SINGLES
from bench.servers import broker

TURNS = 8


def sends(seconds: float) -> None:
    """Single messages and batches of 100, of 1 KiB each; medians and ranges of some turns."""
    with broker() as ours:
        url = f"pulsar://127.0.0.1:{ours.pulsar}"
        for title, load in (("single SENDs", SINGLES), ("batches of 100", LARGER)):
            found = []
            for _ in range(TURNS + 1):
                before = ours.processor_seconds()
                sent = uvloop.run(wire.publish(url, load, seconds / TURNS))
                found.append(sent.messages / (ours.processor_seconds() - before))
            ranked = sorted(found[1:])  # the first turn fills the broker's caches
            print(
                f"{title}: median {statistics.median(ranked):,.0f} messages of 1 KiB for each"
                f" second of the broker's processor time ({ranked[0]:,.0f}-{ranked[-1]:,.0f})"
            )
