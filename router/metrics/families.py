"""The metrics of the router as data: names, kinds, labels, buckets, and what their numbers say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, what its numbers are, the sentence that says what they mean."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    sentence: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    optional: bool = False
    """There is none where it does not apply, in the place of a 0."""


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        "router_http_requests_total",
        "counter",
        "HTTP requests answered.",
        ("route", "method", "status"),
    ),
    Family(
        "router_http_request_seconds",
        "histogram",
        "Time to answer an HTTP request; long-polls count under their own route.",
        ("route",),
        SECONDS,
    ),
    Family(
        "router_http_refused_total",
        "counter",
        "HTTP requests and connections refused before a route was looked for, in no other counter.",
        ("status",),
    ),
    Family("router_published_messages_total", "counter", "Messages stored for HTTP publishers."),
    Family("router_published_bytes_total", "counter", "Bytes of those messages."),
    Family("router_publish_refused_total", "counter", "Publish requests refused.", ("code",)),
    Family("router_delivered_messages_total", "counter", "Messages answered to HTTP polls."),
    Family("router_delivered_bytes_total", "counter", "Bytes of those messages."),
    Family(
        "router_undecoded_messages_total",
        "counter",
        "Messages answered to HTTP polls as the bytes of what could not be taken apart.",
    ),
    Family(
        "router_oversized_entries_total",
        "counter",
        "Entries that polls passed over, larger without their compression than any answer.",
    ),
    Family("router_polls_total", "counter", "Polls ended.", ("outcome",)),
    Family("router_polls_waiting", "gauge", "Polls that wait now."),
    Family(
        "router_poll_wait_seconds",
        "histogram",
        "Time for which a poll waited for messages or for its partitions.",
        buckets=SECONDS,
    ),
    Family(
        "router_poll_service_seconds",
        "histogram",
        "Time that a poll took besides waiting, up to its answer.",
        buckets=SECONDS,
    ),
    Family("router_logins_total", "counter", "Credentials checked.", ("outcome",)),
    Family("router_broker_connections", "gauge", "Connections to the broker now."),
    Family("router_broker_topics", "gauge", "Topics of the node."),
    Family("router_broker_producers", "gauge", "Producers open now."),
    Family("router_broker_consumers", "gauge", "Consumers open now."),
    Family("router_transactions_open", "gauge", "Transactions open now.", optional=True),
    Family(
        "router_transactions_oldest_seconds",
        "gauge",
        "Age of the transaction that is open for longest.",
        optional=True,
    ),
    Family(
        "router_transactions_timed_out_total",
        "counter",
        "Transactions aborted because their time was over.",
        optional=True,
    ),
    Family("router_kafka_groups", "gauge", "Groups of Kafka clients with members.", optional=True),
    Family("router_kafka_group_members", "gauge", "Members of these groups.", optional=True),
    Family("router_nats_connections", "gauge", "NATS clients connected now.", optional=True),
    Family("router_nats_subscriptions", "gauge", "Their subscriptions.", optional=True),
    Family("router_nats_streams", "gauge", "Streams of JetStream in use.", optional=True),
    Family(
        "router_nats_pending_messages",
        "gauge",
        "Messages that consumers of streams were not sent yet.",
        optional=True,
    ),
    Family("router_nats_consumers", "gauge", "Consumers of streams in use.", optional=True),
    Family(
        "router_nats_ack_pending", "gauge", "Messages that they have to acknowledge.", optional=True
    ),
    Family("router_nats_pull_requests", "gauge", "Pull requests that wait.", optional=True),
    Family("router_broker_entries_total", "counter", "Entries stored."),
    Family("router_broker_bytes_total", "counter", "Bytes of the entries stored."),
    Family("router_broker_dispatched_total", "counter", "Entries sent to consumers."),
    Family("router_broker_damaged_entries_total", "counter", "Damaged entries skipped."),
    Family("router_broker_claims", "gauge", "Polls that claim partitions now."),
    Family("router_broker_grants_total", "counter", "Partitions granted to polls."),
    Family("router_broker_revokes_total", "counter", "Partitions asked back from polls."),
    Family("router_broker_leases", "gauge", "Leases that the node holds now."),
    Family("router_broker_handovers_total", "counter", "Leases let go for other nodes."),
    Family("router_broker_leases_lost_total", "counter", "Leases lost, with the coordination."),
    Family(
        "router_broker_coordination_losses_total",
        "counter",
        "Times that the coordination of the nodes could not be reached.",
    ),
    Family("router_broker_empty_polls_limited_total", "counter", "Polls over the empty limit."),
    Family("router_kafka_requests_total", "counter", "Requests of Kafka clients.", ("api",)),
    Family("router_kafka_received_bytes_total", "counter", "Bytes of those requests.", ("api",)),
    Family("router_kafka_sent_bytes_total", "counter", "Bytes of their responses.", ("api",)),
    Family(
        "router_kafka_errors_total",
        "counter",
        "Errors in responses to Kafka clients; one for each partition that has one.",
        ("api", "error"),
    ),
    Family(
        "router_nats_received_messages_total",
        "counter",
        "Messages that NATS clients published.",
        optional=True,
    ),
    Family(
        "router_nats_received_bytes_total",
        "counter",
        "Bytes of those messages, without subjects.",
        optional=True,
    ),
    Family(
        "router_nats_sent_messages_total",
        "counter",
        "Messages sent to NATS clients.",
        optional=True,
    ),
    Family(
        "router_nats_sent_bytes_total",
        "counter",
        "Bytes of those messages, as sent.",
        optional=True,
    ),
    Family(
        "router_nats_slow_consumers_total",
        "counter",
        "NATS clients cut off because they did not take what they were sent.",
        optional=True,
    ),
    Family(
        "router_nats_deliveries_total",
        "counter",
        "Messages that consumers of streams delivered.",
        optional=True,
    ),
    Family(
        "router_nats_redeliveries_total",
        "counter",
        "Those of them that were delivered before.",
        optional=True,
    ),
    Family(
        "router_nats_exhausted_total",
        "counter",
        "Messages that were delivered max_deliver times without an acknowledgement.",
        optional=True,
    ),
    Family(
        "router_nats_errors_total",
        "counter",
        "Errors sent to NATS clients.",
        ("error",),
    ),
    Family(
        "router_nats_api_requests_total",
        "counter",
        "Calls of the JetStream API.",
        optional=True,
    ),
    Family(
        "router_nats_api_errors_total",
        "counter",
        "Calls of the JetStream API that were answered with an error.",
        optional=True,
    ),
    Family(
        "router_broker_sync_seconds",
        "histogram",
        "Time that a sync of the journal took.",
        buckets=SECONDS,
    ),
    Family("router_broker_subscriptions", "gauge", "Groups of topics.", optional=True),
    Family(
        "router_backlog_messages",
        "gauge",
        "Messages that groups have not acknowledged, over all groups.",
        optional=True,
    ),
    Family(
        "router_group_backlog_messages",
        "gauge",
        "Messages that a group has not acknowledged; the groups with the largest backlog only.",
        ("topic", "group"),
    ),
    Family("router_log_bytes", "gauge", "Bytes of the messages stored.", optional=True),
    Family("router_log_segments", "gauge", "Segment files of all partitions.", optional=True),
    Family("router_journal_bytes", "gauge", "Bytes of the journal's files.", optional=True),
    Family("router_journal_files", "gauge", "Files of the journal.", optional=True),
    Family(
        "router_journal_unsynced_bytes",
        "gauge",
        "Bytes that were appended and are not on disk yet.",
        optional=True,
    ),
    *(
        Family(f"router_compaction_{name}_total", "counter", sentence, optional=True)
        for name, sentence in (
            ("cleaned_messages", "Messages that compaction deleted."),
            ("cleaned_tombstones", "Tombstones that compaction deleted."),
            ("reclaimed_bytes", "Bytes of segments that compaction gave back."),
            ("failures", "Partitions that could not be cleaned when they were due."),
        )
    ),
    Family(
        "router_compaction_last_run_time_seconds",
        "gauge",
        "When the cleaner last looked at all compacted topics, in seconds since 1970.",
        optional=True,
    ),
    Family(
        "router_compaction_max_dirty_ratio",
        "gauge",
        "The largest part of a partition that was not cleaned then.",
        optional=True,
    ),
    Family("router_disk_size_bytes", "gauge", "Size of the data folder's disk.", optional=True),
    Family("router_disk_free_bytes", "gauge", "Bytes of it that may be written.", optional=True),
    Family(
        "router_disk_reserve_bytes",
        "gauge",
        "Free bytes below which publishing is refused (storage.reserve).",
        optional=True,
    ),
    Family(
        "router_disk_full",
        "gauge",
        "1 while publishing is refused because the disk is full.",
        optional=True,
    ),
    Family(
        "router_build_info",
        "gauge",
        "1, with the build of the broker and where messages live.",
        ("version", "build", "python", "backend"),
    ),
    Family(
        "router_backup_time_seconds",
        "gauge",
        "When the newest backup of the data folder was taken, since 1970.",
        optional=True,
    ),
    Family("router_broker_start_time_seconds", "gauge", "When the broker started, since 1970."),
    Family("router_processes", "gauge", "Processes, by kind.", ("process",)),
    Family(
        "router_process_resident_memory_bytes",
        "gauge",
        "Memory of the processes of a kind.",
        ("process",),
    ),
    Family(
        "router_process_open_fds", "gauge", "Open files of the processes of a kind.", ("process",)
    ),
    Family(
        "router_process_max_fds",
        "gauge",
        "Open files that the processes of a kind may have, added up.",
        ("process",),
    ),
    Family(
        "router_process_cpu_seconds_total",
        "counter",
        "CPU time of the processes of a kind.",
        ("process",),
    ),
)
BY_NAME: Final[Mapping[str, Family]] = {family.name: family for family in FAMILIES}
