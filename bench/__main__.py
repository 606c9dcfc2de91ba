"""Runs the benchmarks and prints their tables: `python -m bench [publish|topics|delivery|…]`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench import (
    backups,
    clients,
    compaction,
    copying,
    crowds,
    growth,
    kafka,
    kafka_codec,
    logins,
    nats,
    nodes,
    offsets,
    pipeline_growth,
    pipelines,
    polls,
    publishing,
    pulsar,
    searching,
    sends,
    transcoding,
)

SECTIONS: dict[str, Callable[[float], None]] = {
    "start": publishing.start,
    "publish": publishing.single,
    "batch": publishing.batches,
    "topics": publishing.topics,
    "delivery": polls.delivery,
    "polls": polls.compare,
    "crowd": crowds.crowd,
    "logins": logins.logins,
    "pulsar-client": clients.official,
    "sends": sends.sends,
    "search": searching.searching,
    "backups": backups.backups,
    "growth": growth.growth,
    "offsets": offsets.offsets,
    "compaction": compaction.compaction,
    "copy": copying.copying,
    "nodes": nodes.nodes,
    "pulsar": pulsar.compare,
    "kafka": kafka.compare,
    "nats": nats.compare,
    "kafka-codec": kafka_codec.compare,
    "transcoding": transcoding.transcoding,
    "pipelines": pipelines.compare,
    "pipeline-growth": pipeline_growth.growth,
}


def main() -> None:
    """Run the sections named on the command line, or all, for about BENCH seconds each."""
    for name in sys.argv[1:] or SECTIONS:
        print(f"\n## {name}")
        SECTIONS[name](8.0)


if __name__ == "__main__":  # not in the processes that sections spawn
    main()
