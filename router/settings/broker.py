"""The settings of the broker: what it stores, how long it keeps that, and where it listens."""

from __future__ import annotations

from typing import Final

from router.settings.parsing import bound, count, duration, flag, size, text
from router.settings.setting import Setting

BROKER: Final[tuple[Setting, ...]] = (
    Setting("storage.segment", size, "64M", "Size at which a partition starts a new segment file."),
    Setting("storage.journal", size, "64M", "Size at which the journal is cut."),
    Setting("storage.cache", size, "64M", "Memory for the newest entries of all partitions."),
    Setting(
        "storage.reserve",
        size,
        "64M",
        "Free disk space below which publishing is refused while reading goes on.",
    ),
    Setting(
        "storage.relaxed",
        flag,
        "false",
        "Acknowledge before the data is on disk; a power cut then loses messages.",
    ),
    Setting("retention.time", duration, "7d", "How long messages are kept, acknowledged or not."),
    Setting("retention.size", bound, "-1", "Bytes of a partition that are kept; -1: no bound."),
    Setting(
        "retention.backlog",
        bound,
        "-1",
        "Bytes that wait for one group before the oldest go in spite of it; -1: no bound.",
    ),
    Setting(
        "retention.groups",
        duration,
        "7d",
        "Time after its last poll at which a group is forgotten.",
    ),
    Setting("retention.max_groups", count, "1000", "Groups that one topic may have."),
    Setting(
        "dedup.window",
        duration,
        "1d",
        "How long producers and idempotency keys are remembered after their last message.",
    ),
    Setting(
        "dedup.max_producers",
        count,
        "100000",
        "Producers and idempotency keys remembered for one partition; the oldest go first.",
    ),
    Setting(
        "broker.pulsar",
        text,
        "",
        "HOST:PORT where the broker serves Pulsar clients; empty: its socket only.",
    ),
    Setting(
        "broker.pulsar_tls",
        text,
        "",
        "HOST:PORT where the broker serves Pulsar clients over TLS (pulsar+ssl://); empty: not.",
    ),
    Setting("broker.cert", text, "", "PEM file of its certificate; empty: server.cert's."),
    Setting(
        "broker.key", text, "", "PEM file of that certificate's key; empty: broker.cert has it too."
    ),
    Setting(
        "broker.client_ca",
        text,
        "",
        "PEM file of authorities whose certificates Pulsar clients may show; empty:"
        " server.client_ca's.",
    ),
    Setting(
        "broker.advertised",
        text,
        "",
        "Where lookups send Pulsar clients, as `pulsar://host:port,pulsar+ssl://host:port`; empty:"
        " the way that they came.",
    ),
    Setting(
        "broker.http",
        text,
        "",
        "HOST:PORT where `router broker` serves lookups and administration over HTTP; empty: not.",
    ),
    Setting(
        "broker.linger",
        duration,
        "5s",
        "How long a spawned broker stays after its last client left.",
    ),
    Setting(
        "broker.spawn",
        flag,
        "true",
        "Start a broker when none answers and no `serve` or `router broker` runs on the folder.",
    ),
    Setting(
        "broker.connections",
        count,
        "10000",
        "Connections that the broker holds at most, besides those of the router's own processes.",
    ),
    Setting(
        "broker.ping",
        duration,
        "30s",
        "Time of silence after which the broker pings a client; twice that closes it.",
    ),
)
