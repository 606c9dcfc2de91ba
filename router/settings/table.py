"""Every setting, once: name, parser, default and sentence. `docs/settings.md` is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.settings.auth import AUTH
from router.settings.broker import BROKER
from router.settings.parsing import (
    at_most,
    count,
    duration,
    flag,
    group_form,
    listed,
    one_of,
    size,
    text,
)
from router.settings.setting import Setting

SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("server.host", text, "127.0.0.1", "Address that the HTTP server listens on."),
    Setting("server.port", count, "3904", "Port that the HTTP server listens on."),
    Setting("server.workers", count, "0", "Worker processes; 0: one for each usable CPU."),
    Setting(
        "server.worker_class",
        one_of("llhttp", "gevent", "gthread"),
        "llhttp",
        "Kind of gunicorn worker: llhttp with a reading of HTTP of our own, gevent with gunicorn's,"
        " gthread without gevent.",
    ),
    Setting("server.connections", count, "10000", "Connections that one worker holds at most."),
    Setting(
        "server.connections_per_address",
        count,
        "5000",
        "Connections that one worker takes from one address at most, trusted proxies apart; 0: any"
        " number (llhttp).",
    ),
    Setting(
        "server.head_timeout",
        duration,
        "10s",
        "Time that the head of a request has after its first byte (llhttp, gthread).",
    ),
    Setting("server.body_timeout", duration, "5m", "Time that the body of a request has."),
    Setting(
        "server.write_timeout",
        duration,
        "60s",
        "Time for which a client may take nothing of its answer.",
    ),
    Setting(
        "server.graceful_timeout",
        duration,
        "10s",
        "Time that requests under way have to end when the server stops.",
    ),
    Setting("server.cert", text, "", "PEM file of the certificate: HTTPS instead of HTTP."),
    Setting("server.key", text, "", "PEM file of the certificate's key."),
    Setting(
        "server.client_ca",
        text,
        "",
        "PEM file of authorities whose client certificates are taken; empty: none is asked for.",
    ),
    Setting(
        "server.tls_port",
        count,
        "0",
        "Second port for HTTPS, server.port staying HTTP, as the original's 3905; 0: none.",
    ),
    Setting(
        "server.trusted_proxies",
        listed,
        "",
        "Addresses or networks of proxies whose X-Forwarded headers count.",
    ),
    Setting(
        "server.hosts",
        listed,
        "",
        "Names by which anonymous clients may call the router (Host), besides localhost and"
        " addresses of loopback; empty: checked on loopback without a proxy only.",
    ),
    Setting("server.help_url", text, "http://onap.readthedocs.io", "The helpURL of error answers."),
    Setting("data.dir", text, "data", "Folder of the node's broker: log, metadata, socket."),
    Setting(
        "pipelines.folder",
        text,
        "config/pipelines",
        "Folder of the declarations that the console's page of pipelines lists.",
    ),
    Setting(
        "backend.url",
        text,
        "embedded",
        "Where messages live: `embedded`, `memory`, `pulsar://host:port` or"
        " `kafka://host:port,host:port`.",
    ),
    Setting("backend.timeout", duration, "15s", "Time that the backend has to answer one call."),
    Setting("pulsar.token", text, "", "Token by which the router shows Pulsar who it is."),
    Setting(
        "pulsar.token_file", text, "", "File with that token instead; it is read when it is needed."
    ),
    Setting("pulsar.ca", text, "", "PEM file of authorities to trust; empty: the system's."),
    Setting("pulsar.cert", text, "", "PEM file of the router's own certificate for Pulsar."),
    Setting("pulsar.key", text, "", "PEM file of that certificate's key."),
    Setting("kafka.client_id", text, "router", "Name by which Kafka knows the router's clients."),
    Setting(
        "kafka.sasl",
        one_of("none", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        "none",
        "How the router shows Kafka who it is.",
    ),
    Setting("kafka.username", text, "", "User name for SASL."),
    Setting("kafka.password", text, "", "Password for SASL."),
    Setting("kafka.tls", flag, "false", "Speak TLS to Kafka."),
    Setting("kafka.ca", text, "", "PEM file of authorities to trust; empty: the system's."),
    Setting("kafka.cert", text, "", "PEM file of the router's own certificate for Kafka."),
    Setting("kafka.key", text, "", "PEM file of that certificate's key."),
    Setting(
        "kafka.group",
        group_form,
        "{group}",
        "Group id in Kafka; the original's is `{group}--{topic}`.",
    ),
    Setting(
        "kafka.replicas", count, "0", "Replicas of topics made here; 0: as Kafka's own default."
    ),
    Setting(
        "kafka.fencing",
        one_of("deadline", "transactions"),
        "deadline",
        "What keeps a node that stood still from committing late.",
    ),
    Setting("kafka.consumers", count, "200", "Open Kafka consumers of one worker at most."),
    Setting(
        "kafka.consumer_idle", duration, "60s", "Time after which an unused consumer is closed."
    ),
    Setting(
        "zookeeper.servers",
        text,
        "",
        "HOST:PORT,HOST:PORT/chroot of the ZooKeeper that several nodes share; empty: one node.",
    ),
    Setting(
        "zookeeper.session", duration, "10s", "Time after which a node that is silent is replaced."
    ),
    Setting("zookeeper.digest", text, "", "user:password for ZooKeeper's digest scheme."),
    Setting("names.tenant", text, "public", "Pulsar tenant of topics with a local name."),
    Setting("names.namespace", text, "default", "Pulsar namespace of topics with a local name."),
    Setting(
        "names.max_length",
        count,
        "249",
        "Longest topic name that HTTP accepts; the original guide says 40.",
    ),
    *AUTH,
    Setting("cors.origins", listed, "", "Origins whose pages may publish and poll; `*` for all."),
    Setting(
        "topics.auto_create", flag, "true", "Create a topic when somebody publishes to it first."
    ),
    Setting(
        "topics.auto_partitions",
        count,
        "0",
        "Partitions of topics created that way; 0: not partitioned.",
    ),
    Setting(
        "topics.auto_max_topics",
        count,
        "0",
        "Number of topics at which no more are created by their first use; 0: no limit.",
    ),
    Setting(
        "namespaces.auto_create",
        flag,
        "false",
        "Create a missing tenant or namespace with its first topic; Pulsar does not.",
    ),
    Setting(
        "schemas.compatibility",
        one_of(
            "ALWAYS_COMPATIBLE",
            "ALWAYS_INCOMPATIBLE",
            "BACKWARD",
            "BACKWARD_TRANSITIVE",
            "FORWARD",
            "FORWARD_TRANSITIVE",
            "FULL",
            "FULL_TRANSITIVE",
        ),
        "BACKWARD",
        "Which schemas may follow one another on a topic; Pulsar's own default is FULL.",
    ),
    Setting("publish.max_message", size, "1000000", "Largest message."),
    Setting("publish.max_batch", size, "32M", "Largest body, after decompression."),
    Setting("publish.max_messages", count, "100000", "Most messages of one body."),
    Setting(
        "publish.max_ratio", count, "200", "Largest ratio by which a compressed body may grow."
    ),
    Setting(
        "publish.max_in_flight",
        size,
        "128M",
        "Memory of one worker that messages being published may take; more of them wait.",
    ),
    Setting("publish.timeout", duration, "30s", "Time after which a publish is answered with 504."),
    Setting(
        "consume.timeout", duration, "10s", "How long a poll without `timeout` waits for a message."
    ),
    Setting("consume.max_timeout", duration, "2m", "Longest wait that a poll may ask for."),
    Setting("consume.limit", count, "4096", "Most messages that one poll answers."),
    Setting(
        "consume.max_bytes",
        size,
        "16M",
        "Most bytes of messages that one poll answers, and of an entry without its compression.",
    ),
    Setting(
        "consume.max_unsent",
        size,
        "128M",
        "Memory of one worker that answers may take until their clients took them; polls wait.",
    ),
    Setting(
        "consume.dead_letter_topic",
        text,
        "",
        "Topic that takes entries larger than any answer, as they are stored; empty: they are"
        " passed over.",
    ),
    Setting("consume.from", one_of("latest", "earliest"), "latest", "Where a new group starts."),
    Setting(
        "consume.idle",
        duration,
        "5s",
        "How long a consumer id keeps its partitions after its last poll.",
    ),
    Setting(
        "consume.empty_polls_per_minute",
        count,
        "10",
        "Polls without a message that one consumer id may make in a minute; 0: no limit.",
    ),
    Setting(
        "consume.limit_status",
        one_of("429", "503"),
        "429",
        "Status when there are more; the original's is 503.",
    ),
    Setting(
        "consume.unknown_topic",
        one_of("404", "create"),
        "404",
        "What a poll of an unknown topic does.",
    ),
    Setting(
        "pip64.auto_create",
        flag,
        "false",
        "Create a topic that PIP 64's REST calls name and that does not exist.",
    ),
    Setting(
        "pip64.ack_timeout",
        duration,
        "60s",
        "Time after which a REST consumer's unacknowledged message is given again.",
    ),
    Setting(
        "pip64.max_unacknowledged",
        count,
        "5000",
        "Unacknowledged messages of a partition beyond which REST consumers are given no more.",
    ),
    Setting("pip64.max_consumers", count, "100", "REST consumers that one subscription may have."),
    Setting(
        "pip64.max_subscriptions", count, "10000", "Subscriptions that may have REST consumers."
    ),
    Setting(
        "pip64.consumer_idle",
        duration,
        "1h",
        "Time after its last fetch at which a REST consumer is forgotten.",
    ),
    Setting(
        "tracing.enabled",
        flag,
        "false",
        "Record publishes and polls with OpenTelemetry (extra `opentelemetry`); OTEL_*"
        " variables say where traces go.",
    ),
    Setting(
        "stream.connections", count, "200", "Streams of server-sent events of one worker at most."
    ),
    Setting(
        "stream.heartbeat",
        duration,
        "15s",
        "Silence after which a stream sends a comment, so that nobody closes it.",
    ),
    Setting(
        "stream.max_duration",
        duration,
        "1h",
        "Time after which a stream ends; browsers go on where it ended by themselves.",
    ),
    Setting("stream.buffer", size, "1M", "Bytes that a stream reads ahead of a slow client."),
    Setting(
        "stream.write_timeout",
        duration,
        "30s",
        "Time that a stream's client has to take what is sent before it is cut off.",
    ),
    *BROKER,
    Setting(
        "metrics.max_group_series",
        at_most(10_000),
        "500",
        "Series of backlogs, one for a topic and group, that /metrics shows at most: those with the"
        " largest backlog; 10000 at most, 0: none.",
    ),
    Setting("log.level", one_of("debug", "info", "warning", "error"), "info", "What is logged."),
    Setting(
        "log.format",
        one_of("auto", "json", "text"),
        "auto",
        "Form of the log lines. json: every line of every process; text: for people; auto: text on"
        " a terminal and JSON elsewhere, while `serve` and `broker` speak in sentences.",
    ),
    Setting(
        "log.access",
        one_of("off", "common", "json"),
        "off",
        "Access log: a line for each answered request, in the Common Log Format or as JSON.",
    ),
)

BY_NAME: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}
