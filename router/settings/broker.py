"""The settings of the broker: storage, retention, deduplication, listeners, NATS clients."""

from __future__ import annotations

from typing import Final

from router.settings.setting import Setting, bound, count, duration, flag, size, text

BROKER: Final[tuple[Setting, ...]] = (
    size("storage.segment", "64M", "Size at which a partition starts a new segment file."),
    size("storage.journal", "64M", "Size at which a new journal file is started."),
    size("storage.cache", "64M", "Memory for the newest entries of all partitions."),
    size(
        "storage.reserve",
        "64M",
        "Free disk space below which publishing is refused; reading continues.",
    ),
    flag(
        "storage.relaxed",
        "false",
        "Acknowledge publishes before the data is on disk; a power cut then loses messages.",
    ),
    duration(
        "retention.time",
        "7d",
        "Time for which messages are kept, acknowledged or not; unacknowledged messages are kept"
        " longer (retention.backlog).",
    ),
    bound(
        "retention.size",
        "-1",
        "Size of a partition above which its oldest messages are deleted if all groups have"
        " acknowledged them; -1: no limit.",
    ),
    bound(
        "retention.backlog",
        "-1",
        "Size of a group's unacknowledged messages above which those beyond their retention are"
        " deleted; -1: no limit.",
    ),
    duration("retention.groups", "7d", "Time after its last poll at which a group is removed."),
    duration(
        "retention.offsets",
        "7d",
        "Time after which the offsets of a group that only Kafka clients use are removed, if it has"
        " no members and commits none.",
    ),
    count("retention.max_groups", "1000", "Maximum number of groups of one topic."),
    duration(
        "dedup.window",
        "1d",
        "Time for which producers and idempotency keys are kept after their last message.",
    ),
    count(
        "dedup.max_producers",
        "100000",
        "Maximum number of producers and idempotency keys kept for one partition; the oldest"
        " are removed first.",
    ),
    text(
        "broker.pulsar",
        "",
        "HOST:PORT on which the broker serves Pulsar clients; empty: its socket only.",
    ),
    text(
        "broker.pulsar_tls",
        "",
        "HOST:PORT on which the broker serves Pulsar clients over TLS (pulsar+ssl://); empty:"
        " none.",
    ),
    text("broker.kafka", "", "HOST:PORT on which the broker serves Kafka clients; empty: none."),
    text(
        "broker.kafka_tls",
        "",
        "HOST:PORT on which the broker serves Kafka clients over TLS (security.protocol SSL or"
        " SASL_SSL); empty: none.",
    ),
    text(
        "broker.kafka_advertised",
        "",
        "Addresses that metadata names to Kafka clients, as"
        " `kafka://host:port,kafka+ssl://host:port`; empty: the address that the client connected"
        " to.",
    ),
    size(
        "broker.kafka_max_batch",
        "1048588",
        "Maximum size of a batch of records that a Kafka client sends (message.max.bytes).",
    ),
    text("broker.nats", "", "HOST:PORT on which the broker serves NATS clients; empty: none."),
    text(
        "broker.nats_tls",
        "",
        "HOST:PORT on which the broker serves NATS clients over TLS (tls://); empty: none.",
    ),
    text(
        "broker.nats_advertised",
        "",
        "Addresses that the server's INFO shows to NATS clients, as"
        " `nats://host:port,nats+ssl://host:port`; empty: the address that the client connected"
        " to.",
    ),
    text("broker.cert", "", "PEM file of the broker's certificate; empty: that of server.cert."),
    text(
        "broker.key",
        "",
        "PEM file of that certificate's private key; empty: the key is in the file of broker.cert.",
    ),
    text(
        "broker.client_ca",
        "",
        "PEM file of the authorities whose certificates are accepted from Pulsar, Kafka and NATS"
        " clients; empty: that of server.client_ca.",
    ),
    text(
        "broker.advertised",
        "",
        "Addresses that lookups return to Pulsar clients, as"
        " `pulsar://host:port,pulsar+ssl://host:port`; empty: the address that the client"
        " connected to.",
    ),
    duration(
        "broker.kafka_rebalance_delay",
        "3s",
        "Time for which a Kafka group that was empty waits for more members than the first.",
    ),
    duration(
        "broker.kafka_consumer_heartbeat",
        "5s",
        "How often members of Kafka's groups send heartbeats with `group.protocol=consumer`; a"
        " rebalance takes up to two of them.",
    ),
    text(
        "broker.http",
        "",
        "HOST:PORT on which `router broker` serves lookups and administration over HTTP; empty:"
        " none.",
    ),
    duration(
        "broker.linger",
        "5s",
        "Time after which a broker that a command started stops when its last client has"
        " disconnected.",
    ),
    flag(
        "broker.spawn",
        "true",
        "Start a broker if none answers and no `serve` or `router broker` runs on the folder.",
    ),
    count(
        "broker.connections",
        "10000",
        "Maximum number of connections of the broker; those of the router's own processes are"
        " not counted.",
    ),
    duration(
        "broker.ping",
        "30s",
        "Time of silence after which the broker pings a client; after twice this time it closes"
        " the connection.",
    ),
    flag(
        "jetstream.enabled",
        "true",
        "Serve JetStream: its API, streams for NATS clients, and publishing, fetching and"
        " acknowledging over HTTP.",
    ),
    size(
        "nats.max_payload",
        "1M",
        "Maximum size of a message of a NATS client or of JetStream over HTTP, with its headers.",
    ),
    count("nats.max_subscriptions", "10000", "Maximum number of subscriptions of one NATS client."),
    size(
        "nats.max_pending",
        "32M",
        "Size of the messages that wait for a NATS client above which it is cut off as a slow"
        " consumer.",
    ),
    count(
        "nats.max_subjects",
        "500000",
        "Maximum number of subjects that the messages of all streams have together. A message with"
        " a new subject beyond it is refused.",
    ),
)
