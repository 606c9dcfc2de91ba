"""All settings: name, parser, default and sentence. `docs/settings.md` is generated from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router.settings.auth import AUTH
from router.settings.broker import BROKER
from router.settings.setting import (
    Setting,
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

SETTINGS: Final[tuple[Setting, ...]] = (
    text("server.host", "127.0.0.1", "Address on which the HTTP server listens."),
    count("server.port", "3904", "Port on which the HTTP server listens."),
    count("server.workers", "0", "Number of worker processes; 0: one for each usable CPU."),
    one_of("llhttp", "gthread")(
        "server.worker_class",
        "llhttp",
        "gunicorn worker class. llhttp: the router's own HTTP reader on gevent; gthread:"
        " threads with gunicorn's parser.",
    ),
    count("server.connections", "10000", "Maximum number of connections of one worker."),
    count(
        "server.connections_per_address",
        "5000",
        "Maximum number of connections of one worker from one address; trusted proxies are not"
        " counted; 0: no limit (llhttp).",
    ),
    duration(
        "server.head_timeout",
        "10s",
        "Maximum time between the first byte of a request and the end of its head (llhttp,"
        " gthread).",
    ),
    duration("server.body_timeout", "5m", "Maximum time for receiving the body of a request."),
    duration(
        "server.write_timeout",
        "60s",
        "Time after which the connection of a client that reads nothing of its answer is closed.",
    ),
    duration(
        "server.graceful_timeout",
        "10s",
        "Maximum time for requests in progress to complete when the server stops.",
    ),
    text(
        "server.cert",
        "",
        "PEM file of the certificate; if it is set, the server uses HTTPS instead of HTTP.",
    ),
    text("server.key", "", "PEM file of the certificate's private key."),
    text(
        "server.client_ca",
        "",
        "PEM file of the authorities whose client certificates are accepted; empty: no client"
        " certificate is requested.",
    ),
    count(
        "server.tls_port",
        "0",
        "Second port, for HTTPS, as the original's 3905; server.port then serves HTTP; 0: none.",
    ),
    listed(
        "server.trusted_proxies",
        "",
        "Addresses or networks of proxies whose X-Forwarded headers are trusted.",
    ),
    listed(
        "server.hosts",
        "",
        "Host names that anonymous clients may use for the router (Host), in addition to"
        " localhost and loopback addresses; empty: checked on loopback without a proxy only.",
    ),
    text(
        "server.help_url",
        "http://onap.readthedocs.io",
        "The helpURL of error answers; `{code}` stands for the code of the failure, as in a link to"
        " its section of the page Errors.",
    ),
    text("data.dir", "data", "Data folder of the node's broker: log, metadata, socket."),
    text(
        "pipelines.folder",
        "config/pipelines",
        "Folder of the pipeline declarations that the console lists.",
    ),
    text(
        "backend.url",
        "embedded",
        "Store of the messages: `embedded`, `memory`, `pulsar://host:port` or"
        " `kafka://host:port,host:port`.",
    ),
    duration("backend.timeout", "15s", "Maximum time for the backend to answer one call."),
    text("pulsar.token", "", "Token with which the router authenticates to Pulsar."),
    text(
        "pulsar.token_file",
        "",
        "File with that token instead; it is read whenever the token is needed.",
    ),
    text("pulsar.ca", "", "PEM file of the trusted authorities; empty: those of the system."),
    text("pulsar.cert", "", "PEM file of the router's client certificate for Pulsar."),
    text("pulsar.key", "", "PEM file of that certificate's private key."),
    text("kafka.client_id", "router", "Client id that the router sends to Kafka."),
    one_of("none", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")(
        "kafka.sasl", "none", "SASL mechanism with which the router authenticates to Kafka."
    ),
    text("kafka.username", "", "User name for SASL."),
    text("kafka.password", "", "Password for SASL."),
    flag("kafka.tls", "false", "Use TLS for connections to Kafka."),
    text("kafka.ca", "", "PEM file of the trusted authorities; empty: those of the system."),
    text("kafka.cert", "", "PEM file of the router's client certificate for Kafka."),
    text("kafka.key", "", "PEM file of that certificate's private key."),
    group_form(
        "kafka.group",
        "{group}",
        "Form of the group id in Kafka; the original's is `{group}--{topic}`.",
    ),
    count(
        "kafka.replicas",
        "0",
        "Replication factor of topics that the router creates; 0: Kafka's default.",
    ),
    one_of("deadline", "transactions")(
        "kafka.fencing",
        "deadline",
        "Method that prevents late commits by a node that was suspended.",
    ),
    count("kafka.consumers", "200", "Maximum number of open Kafka consumers of one worker."),
    duration("kafka.consumer_idle", "60s", "Time after which an unused consumer is closed."),
    text(
        "zookeeper.servers",
        "",
        "HOST:PORT,HOST:PORT/chroot of the ZooKeeper that several nodes share; empty: a single"
        " node.",
    ),
    duration(
        "zookeeper.session",
        "10s",
        "Session timeout: a node that is silent for this time is replaced.",
    ),
    text("zookeeper.digest", "", "user:password for ZooKeeper's digest scheme."),
    text("names.tenant", "public", "Pulsar tenant of topics with a local name."),
    text("names.namespace", "default", "Pulsar namespace of topics with a local name."),
    count(
        "names.max_length",
        "249",
        "Maximum length of a topic name over HTTP; the original guide specifies 40.",
    ),
    *AUTH,
    listed("cors.origins", "", "Origins whose pages may publish and poll; `*` for all."),
    flag("topics.auto_create", "true", "Create a topic when a message is first published to it."),
    count(
        "topics.auto_partitions",
        "0",
        "Number of partitions of topics created that way; 0: not partitioned.",
    ),
    count(
        "topics.auto_max_topics",
        "0",
        "Number of topics from which no more are created by their first use; 0: no limit.",
    ),
    flag(
        "namespaces.auto_create",
        "false",
        "Create a missing tenant or namespace with its first topic; Pulsar does not.",
    ),
    one_of(
        "ALWAYS_COMPATIBLE",
        "ALWAYS_INCOMPATIBLE",
        "BACKWARD",
        "BACKWARD_TRANSITIVE",
        "FORWARD",
        "FORWARD_TRANSITIVE",
        "FULL",
        "FULL_TRANSITIVE",
    )(
        "schemas.compatibility",
        "BACKWARD",
        "Compatibility check for a new schema of a topic; Pulsar's own default is FULL.",
    ),
    size("publish.max_message", "1000000", "Maximum size of a message."),
    size("publish.max_batch", "32M", "Maximum size of a body after decompression."),
    count("publish.max_messages", "100000", "Maximum number of messages in one body."),
    count(
        "publish.max_ratio",
        "200",
        "Maximum ratio of the decompressed to the compressed size of a body.",
    ),
    size(
        "publish.max_in_flight",
        "128M",
        "Maximum memory of one worker for messages that are being published; further messages"
        " wait.",
    ),
    duration("publish.timeout", "30s", "Time after which a publish is answered with 504."),
    duration(
        "consume.timeout", "10s", "Time for which a poll without `timeout` waits for a message."
    ),
    duration("consume.max_timeout", "2m", "Maximum wait that a poll may request."),
    count("consume.limit", "4096", "Maximum number of messages in the answer of one poll."),
    size(
        "consume.max_bytes",
        "16M",
        "Maximum size of the messages in the answer of one poll, and of a decompressed entry.",
    ),
    size(
        "consume.max_unsent",
        "128M",
        "Maximum memory of one worker for answers that clients have not read yet; further polls"
        " wait.",
    ),
    text(
        "consume.dead_letter_topic",
        "",
        "Topic to which entries that are larger than any answer are published as they are"
        " stored; empty: they are skipped.",
    ),
    one_of("latest", "earliest")("consume.from", "latest", "Position at which a new group starts."),
    duration(
        "consume.idle",
        "5s",
        "Time for which a consumer id keeps its partitions after its last poll.",
    ),
    count(
        "consume.empty_polls_per_minute",
        "10",
        "Maximum number of polls without a message by one consumer id in a minute; 0: no limit.",
    ),
    one_of("429", "503")(
        "consume.limit_status", "429", "Status of polls beyond that limit; the original's is 503."
    ),
    one_of("404", "create")(
        "consume.unknown_topic",
        "404",
        "Effect of a poll of an unknown topic: answer 404 or create the topic.",
    ),
    flag("pip64.auto_create", "false", "Create a missing topic when PIP 64's REST calls name it."),
    duration(
        "pip64.ack_timeout",
        "60s",
        "Time after which a message that a REST consumer has not acknowledged is redelivered.",
    ),
    count(
        "pip64.max_unacknowledged",
        "5000",
        "Number of unacknowledged messages of a partition from which REST consumers receive no"
        " more.",
    ),
    count("pip64.max_consumers", "100", "Maximum number of REST consumers of one subscription."),
    count(
        "pip64.max_subscriptions", "10000", "Maximum number of subscriptions with REST consumers."
    ),
    duration(
        "pip64.consumer_idle",
        "1h",
        "Time after its last fetch at which a REST consumer is removed.",
    ),
    flag(
        "tracing.enabled",
        "false",
        "Record publishes and polls with OpenTelemetry (extra `opentelemetry`); OTEL_*"
        " variables configure the export.",
    ),
    count(
        "stream.connections",
        "200",
        "Maximum number of streams of server-sent events of one worker.",
    ),
    duration(
        "stream.heartbeat",
        "15s",
        "Time without an event after which a stream sends a comment, so that the connection is"
        " not closed as idle.",
    ),
    duration(
        "stream.max_duration",
        "1h",
        "Time after which a stream ends; browsers reconnect and continue at the same position.",
    ),
    size(
        "stream.buffer",
        "1M",
        "Maximum number of bytes that a stream reads ahead for a slow client.",
    ),
    duration(
        "stream.write_timeout",
        "30s",
        "Maximum time during which a stream's client reads nothing before the connection is"
        " closed.",
    ),
    *BROKER,
    at_most(10_000)(
        "metrics.max_group_series",
        "500",
        "Maximum number of backlog series on /metrics, one for a topic and group: those with"
        " the largest backlog; 10000 at most, 0: none.",
    ),
    one_of("debug", "info", "warning", "error")(
        "log.level", "info", "Lowest level of the log lines that are written."
    ),
    one_of("auto", "json", "text")(
        "log.format",
        "auto",
        "Format of the log lines. json: every line of every process is JSON; text: for people;"
        " auto: text on a terminal and JSON elsewhere, with plain sentences from `serve` and"
        " `broker`.",
    ),
    one_of("off", "common", "json")(
        "log.access",
        "off",
        "Access log: one line for each answered request, in the Common Log Format or as JSON.",
    ),
)

BY_NAME: Final[Mapping[str, Setting]] = {setting.name: setting for setting in SETTINGS}
