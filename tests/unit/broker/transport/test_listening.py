"""Addresses, and settings under which a broker does not serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.broker.listeners import check
from router.broker.transport.listening import ListenAddress, has_log, remote_url
from router.errors import SettingError
from router.settings import Settings, load
from tests.servers.certificates import Authority

KAFKA = "kafka://somebody:s3cr3t@k1:9092,k2:9092/?sasl.password=hidden"


def settings_of(settings: dict[str, str]) -> Settings:
    return load(None, {}, {name.replace("_", ".", 1): value for name, value in settings.items()})


def checked(**settings: str) -> None:
    check(settings_of(settings))


@pytest.mark.parametrize("address", ["127.0.0.1:6650", "127.8.8.8:0", "[::1]:6650", "localhost:1"])
def test_loopback_is_served_when_nobody_is_known(address: str) -> None:
    checked(broker_pulsar=address)


@pytest.mark.parametrize("address", ["0.0.0.0:6650", ":6650", "192.0.2.1:1", "[::]:1", "8.8.8.8:1"])
def test_other_addresses_are_refused_unless_insecure(address: str) -> None:
    with pytest.raises(SettingError, match=r"auth\.insecure"):
        checked(broker_pulsar=address)
    checked(broker_pulsar=address, auth_insecure="true")


@pytest.mark.parametrize("setting", ["auth_users", "auth_token_secret_file"])
@pytest.mark.parametrize("listener", ["broker_pulsar", "broker_pulsar_tls"])
def test_all_addresses_are_served_when_clients_say_who_they_are(
    tmp_path: Path, setting: str, listener: str
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"#" * 32)
    pair = Authority(tmp_path).issue("server")
    given = {listener: "0.0.0.0:6650", setting: str(file)}
    checked(**given, broker_cert=str(pair.cert), broker_key=str(pair.key))


@pytest.mark.parametrize("setting", ["auth_users", "auth_token_secret_file", "auth_permissions"])
def test_files_that_cannot_be_used_are_refused_where_clients_are_served(
    tmp_path: Path, setting: str
) -> None:
    given = {setting: str(tmp_path / "missing")}
    checked(**given)
    with pytest.raises(SettingError):
        checked(**given, broker_pulsar="127.0.0.1:6650")


def test_tls_is_refused_when_it_has_no_certificate_or_one_that_does_not_load(
    tmp_path: Path,
) -> None:
    address = "127.0.0.1:6651"
    with pytest.raises(SettingError, match=r"broker\.cert"):
        checked(broker_pulsar_tls=address)
    pair, other = Authority(tmp_path).issue("a"), Authority(tmp_path / "b").issue("b")
    for whose in ("broker", "server"):
        given = {f"{whose}_cert": str(pair.cert), f"{whose}_key": str(other.key)}
        with pytest.raises(SettingError, match=rf"{whose}\.key .* is not the key"):
            checked(broker_pulsar_tls=address, **given)
    checked(broker_pulsar_tls=address, server_cert=str(pair.cert), server_key=str(pair.key))


@pytest.mark.parametrize("text", ["6650", "host", "host:", "host:65536", "host:-1", "host:6 6"])
def test_addresses_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="HOST:PORT"):
        ListenAddress.parse(text, "broker.pulsar")


def test_hosts_lose_their_brackets_when_parsed() -> None:
    assert ListenAddress.parse("[::1]:6650", "broker.pulsar") == ListenAddress("::1", 6650)


def test_pulsar_clients_are_refused_when_messages_live_elsewhere() -> None:
    with pytest.raises(SettingError, match="there is nothing to serve") as refusal:
        checked(broker_pulsar="127.0.0.1:6650", backend_url=KAFKA, auth_insecure="true")
    assert "kafka://k1:9092,k2:9092;" in str(refusal.value)
    checked(backend_url=KAFKA)


@pytest.mark.parametrize("backend", ["embedded", "memory"])
def test_zookeeper_is_refused_when_messages_are_the_nodes_own(backend: str) -> None:
    with pytest.raises(SettingError, match="those of the backend") as refusal:
        checked(zookeeper_servers="zk:2181", backend_url=backend)
    assert backend in str(refusal.value)


@pytest.mark.parametrize("backend", [KAFKA, "pulsar://p:6650"])
def test_zookeeper_is_served_when_all_nodes_share_a_broker(backend: str) -> None:
    checked(zookeeper_servers="zk1:2181,zk2:2181/chroot", backend_url=backend)


def test_servers_that_are_none_are_refused() -> None:
    with pytest.raises(SettingError, match="HOST:PORT,HOST:PORT/chroot"):
        checked(zookeeper_servers="zk:2181:x", backend_url=KAFKA)


@pytest.mark.parametrize(
    ("url", "where"),
    [
        (KAFKA, "kafka://k1:9092,k2:9092"),
        ("pulsar+ssl://p:6651", "pulsar+ssl://p:6651"),
        ("pulsar://a:b@[::1]:6650/?x=y", "pulsar://[::1]:6650"),
        ("memory", "memory"),
    ],
)
def test_people_are_told_where_messages_live_without_passwords(url: str, where: str) -> None:
    settings = settings_of({"backend_url": url})
    assert remote_url(settings) == where
    assert not has_log(settings)
