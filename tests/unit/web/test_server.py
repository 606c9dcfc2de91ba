"""gunicorn's settings: made from ours, and never open to strangers by accident."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import pytest
from gunicorn import util
from gunicorn.config import Config

from router.errors import SettingError
from router.settings import Settings, load
from router.web.origins import is_loopback
from router.web.server import (
    bind_address,
    check_exposure,
    options,
    share,
    word_refusals,
    workers,
)


def settings(**flags: str) -> Settings:
    return load(None, {}, {name.replace("__", "."): value for name, value in flags.items()})


@pytest.mark.parametrize("kind", ["llhttp", "gthread"])
def test_options_are_all_known_to_gunicorn(kind: str) -> None:
    config = Config()
    for name, value in options(settings(server__worker_class=kind)).items():
        config.set(name, value)
    assert config.reuse_port
    assert not config.preload_app
    assert config.control_socket_disable
    assert not config.forwarded_allow_ips
    assert not config.forwarder_headers
    assert config.address == [("127.0.0.1", 3904)]


@pytest.mark.parametrize(
    ("bind", "systemd", "own"),
    [
        (["127.0.0.1:1"], False, True),
        (["127.0.0.1:1", "[::1]:1"], False, True),
        (["127.0.0.1:1"], True, False),
        (["unix:/run/front.sock"], False, False),
        (["unix:@front"], False, False),
        (["fd://3"], False, False),
        (["127.0.0.1:1", "unix:/run/front.sock"], False, False),
    ],
)
def test_workers_have_queues_of_their_own_where_they_can(
    bind: list[str], systemd: bool, own: bool
) -> None:
    config = Config()
    config.set("reuse_port", True)
    config.set("bind", bind)
    share(SimpleNamespace(cfg=config, systemd=systemd))
    assert config.reuse_port == own


def test_options_give_threads_only_to_the_fallback() -> None:
    assert options(settings())["threads"] == 1
    assert (
        options(settings(server__worker_class="gthread", server__connections="9"))["threads"] == 9
    )


def test_options_bind_an_ipv6_address_in_brackets() -> None:
    config = Config()
    config.set("bind", options(settings(server__host="::1"))["bind"])
    assert config.address == [("::1", 3904)]
    assert bind_address("localhost", 1) == "localhost:1"


def test_options_refuse_an_outside_address_without_users() -> None:
    with pytest.raises(SettingError, match="--insecure"):
        options(settings(server__host="0.0.0.0"))


@pytest.mark.parametrize("more", [{"auth__insecure": "true"}, {"auth__users": "users"}])
def test_check_exposure_allows_an_outside_address_when(more: dict[str, str]) -> None:
    check_exposure(settings(server__host="0.0.0.0", **more))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_is_loopback_knows_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1"])
def test_is_loopback_knows_other_addresses(host: str) -> None:
    assert not is_loopback(host)


def test_is_loopback_refuses_a_name_that_is_none() -> None:
    with pytest.raises(SettingError, match=r"server\.host"):
        is_loopback("no such host")


def test_workers_are_as_many_as_cpus_unless_set() -> None:
    assert workers(settings()) == len(os.sched_getaffinity(0))
    assert workers(settings(server__workers="7")) == 7


def test_workers_are_one_over_memory() -> None:
    assert workers(settings(server__workers="7", backend__url="memory")) == 1


def test_requests_that_cannot_be_read_are_answered_as_json_that_is_not_sniffed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unread(status: int, sentence: str) -> tuple[bytes, str]:
        return f'{{"status":{status},"message":"{sentence}"}}'.encode(), "an-id"

    monkeypatch.setattr(util, "write_error", util.write_error)
    application = SimpleNamespace(extensions={"router.unread": unread})
    word_refusals(SimpleNamespace(wsgi=application))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        util.write_error(ours, 400, "Bad Request", "no head")
        head, _, body = theirs.recv(10_000).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"\r\nX-Content-Type-Options: nosniff" in head
    assert body == b'{"status":400,"message":"no head"}'
