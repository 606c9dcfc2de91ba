"""The URL and the settings of the Kafka backend: where Kafka is, credentials, and options."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from router.errors import SettingError
from router.settings import Settings, without_password
from router.settings.options import SettingsOptions, from_setting

PORT: Final = 9092
_FORM: Final = "kafka://host:port[,host:port][/?client_id=…&sasl=…&tls=…]"
_MECHANISMS: Final = ("none", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_FLAGS: Final = {"true": True, "false": False}
MIN_INFLATED_BYTES: Final = 5 * 1024 * 1024
"""A batch of so many bytes is inflated however little a poll may answer: Kafka compresses several
messages together, and more of them than were sent together."""


@dataclass(frozen=True, slots=True)
class KafkaConnectionOptions:
    """The brokers to ask first, and what every connection shows and demands."""

    hosts: tuple[tuple[str, int], ...]
    client_id: str = "router"
    mechanism: str = "none"
    username: str = ""
    password: str = ""
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(cls, url: str, settings: Settings) -> KafkaConnectionOptions:
        """Read the URL, whose options come before the settings; raise SettingError."""
        name = repr(without_password(url))
        if "@" in url:  # wherever it is: a piece of a password is taken for no host or option
            raise SettingError(
                f"{name}: credentials belong to kafka.username, kafka.password (elsewhere @ is %40)"
            )
        parts = _split(url, name)
        if parts.scheme != "kafka" or parts.path not in {"", "/"} or parts.fragment:
            raise SettingError(f"{name}: expected {_FORM}")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        client_id = options.pop("client_id", settings.text("kafka.client_id"))
        mechanism = options.pop("sasl", settings.text("kafka.sasl"))
        if mechanism not in _MECHANISMS:
            raise SettingError(f"{name}: sasl is one of {', '.join(_MECHANISMS)}")
        tls = _FLAGS.get(options.pop("tls", str(settings.flag("kafka.tls")).lower()))
        if tls is None:
            raise SettingError(f"{name}: tls is true or false")
        if options:
            raise SettingError(
                f"{name}: unknown option {min(options)!r}; there are client_id, sasl and tls"
            )
        username, password = settings.text("kafka.username"), settings.text("kafka.password")
        if mechanism != "none" and not (username and password):
            raise SettingError(f"{mechanism} needs kafka.username and kafka.password")
        hosts = tuple(_host(host, name) for host in parts.netloc.split(","))
        context = _context(settings) if tls else None
        return cls(hosts, client_id, mechanism, username, password, context)

    def __str__(self) -> str:
        return "kafka://" + ",".join(f"{host}:{port}" for host, port in self.hosts)


def _split(url: str, name: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise SettingError(f"{name}: {error}") from error


def _host(text: str, name: str) -> tuple[str, int]:
    parts = _split(f"//{text}", name)
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingError(f"{name}: {error}") from error
    if not host:
        raise SettingError(f"{name}: a host is missing")
    return host, PORT if port is None else port


def _context(settings: Settings) -> ssl.SSLContext:
    """Return what makes TLS connections: the name of each broker is always checked."""
    cert, key = settings.text("kafka.cert"), settings.text("kafka.key")
    try:
        context = ssl.create_default_context(cafile=settings.text("kafka.ca") or None)
        if cert:
            context.load_cert_chain(cert, key or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"kafka.ca, kafka.cert or kafka.key cannot be used: {error}") from error
    return context


@dataclass(frozen=True, slots=True)
class KafkaOptions(SettingsOptions):
    """The settings that the Kafka backend reads."""

    tenant: str = from_setting("names.tenant")
    namespace: str = from_setting("names.namespace")
    group: str = from_setting("kafka.group")
    replicas: int = from_setting("kafka.replicas")
    fenced_by_kafka: bool = from_setting("kafka.fencing", lambda word: word == "transactions")
    consumers: int = from_setting("kafka.consumers")
    consumer_idle: float = from_setting("kafka.consumer_idle")
    auto_create: bool = from_setting("topics.auto_create")
    auto_partitions: int = from_setting("topics.auto_partitions")
    compatibility: str = from_setting("schemas.compatibility")
    max_inflated: int = from_setting("consume.max_bytes", partial(max, MIN_INFLATED_BYTES))
