"""Where a request really comes from."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.access.addresses import client_network
from router.errors import SettingError
from router.web.addresses import Forwarded, is_local, trusted

PROXIES = ("10.0.0.0/8", "::1", "192.0.2.7")
addresses = st.ip_addresses()
junk = st.text(alphabet="0123456789abcdef.:[], unkow-_\t", max_size=30).filter(
    lambda text: "," not in text
)


def client(remote: str, header: str | None = None, proxies: tuple[str, ...] = PROXIES) -> str:
    """Return the address that the application sees."""
    seen: list[str] = []

    def application(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        del start
        seen.append(environ["REMOTE_ADDR"])
        return []

    environ = {"REMOTE_ADDR": remote}
    if header is not None:
        environ["HTTP_X_FORWARDED_FOR"] = header
    Forwarded(application, trusted(proxies))(environ, lambda *_: lambda _body: None)
    return seen[0]


def trusts(address: IPv4Address | IPv6Address) -> bool:
    return any(address in network for network in trusted(PROXIES))


@pytest.mark.parametrize(
    ("remote", "header", "found"),
    [
        ("203.0.113.9", "1.2.3.4", "203.0.113.9"),  # no proxy of ours: the header is the client's
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4, 192.0.2.7,10.9.9.9", "1.2.3.4"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "6.6.6.6, unknown", "10.0.0.1"),
        ("10.0.0.1", "6.6.6.6, unknown, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "6.6.6.6,", "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4:5678", "1.2.3.4"),
        ("10.0.0.1", "1.2.3.4:x", "10.0.0.1"),
        ("10.0.0.1", "[2001:db8::1]", "2001:db8::1"),
        ("10.0.0.1", "[2001:db8::1]:443", "2001:db8::1"),
        ("10.0.0.1", "[2001:db8::1]443", "10.0.0.1"),
        ("10.0.0.1", "[1.2.3.4]", "10.0.0.1"),
        ("10.0.0.1", "2001:DB8:0:0::1", "2001:db8::1"),
        ("10.0.0.1", "::ffff:1.2.3.4", "1.2.3.4"),
        ("::ffff:10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("::1", "01.2.3.4", "::1"),
        ("", "1.2.3.4", ""),
    ],
)
def test_client_is_the_last_hop_that_is_no_proxy_of_ours(
    remote: str, header: str | None, found: str
) -> None:
    assert client(remote, header) == found


@given(
    claimed=st.lists(st.one_of(addresses.map(str), junk), max_size=4),
    real=addresses.filter(lambda address: not trusts(address) and not _mapped(address)),
    hops=st.lists(st.sampled_from(["10.0.0.5", "192.0.2.7", "::1"]), max_size=3),
)
def test_nothing_that_a_client_writes_changes_its_address(
    claimed: list[str], real: IPv4Address | IPv6Address, hops: list[str]
) -> None:
    header = ", ".join([*claimed, str(real), *hops])
    assert client("10.0.0.1", header) == str(real)
    assert client(str(real), header) == str(real)


def _mapped(address: IPv4Address | IPv6Address) -> bool:
    return isinstance(address, IPv6Address) and (
        address.ipv4_mapped is not None or address.scope_id is not None
    )


@given(remote=st.one_of(addresses.map(str), junk), header=st.lists(junk, max_size=5))
def test_any_header_leaves_an_address(remote: str, header: list[str]) -> None:
    found = client(remote, ",".join(header))
    assert found == remote or str(ip_address(found)) == found


def test_what_a_proxy_handed_on_is_never_local() -> None:
    environ = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": "127.0.0.1"}
    Forwarded(lambda _environ, _start: [], trusted(PROXIES))(environ, lambda *_: lambda _body: None)
    assert environ["REMOTE_ADDR"] == "127.0.0.1"
    assert not is_local(environ)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("LocalHost:3904", True),
        ("127.0.0.1:3904", True),
        ("[::1]:3904", True),
        ("::1", True),
        ("", True),
        # A page there, whose name its owner lets stand for 127.0.0.1.
        ("pages.example", False),
        ("pages.example:3904", False),
        ("localhost.pages.example:3904", False),
        ("127.0.0.1.pages.example", False),
    ],
)
def test_what_was_sent_to_a_name_of_somebody_else_is_not_local(host: str, local: bool) -> None:
    assert is_local({"REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": host}) is local


@given(st.ip_addresses(v=6), st.ip_addresses(v=6))
def test_ration_is_for_a_network_of_ipv6(
    one: IPv4Address | IPv6Address, other: IPv4Address | IPv6Address
) -> None:
    if not (_mapped(one) or _mapped(other)):
        assert (client_network(str(one)) == client_network(str(other))) == (
            int(one) >> 64 == int(other) >> 64
        )
    within = IPv6Address(int(one) ^ 1)
    assert _mapped(one) or client_network(str(one)) == client_network(str(within))


@given(st.ip_addresses(v=4))
def test_ration_is_for_an_address_of_ipv4(address: IPv4Address | IPv6Address) -> None:
    assert client_network(str(address)) == client_network(f"::ffff:{address}") == str(address)
    assert client_network("") == ""


@pytest.mark.parametrize("word", ["x", "10.0.0.1/8", "10.0.0.0/40", "localhost"])
def test_proxies_that_are_no_addresses_stop_the_start(word: str) -> None:
    with pytest.raises(SettingError, match=r"server\.trusted_proxies"):
        trusted((word,))


@pytest.mark.parametrize(
    ("environ", "local"),
    [
        ({"REMOTE_ADDR": "127.0.0.1"}, True),
        ({"REMOTE_ADDR": "127.8.9.1"}, True),
        ({"REMOTE_ADDR": "::1"}, True),
        ({"REMOTE_ADDR": "::ffff:127.0.0.1"}, True),
        ({"REMOTE_ADDR": "10.0.0.1"}, False),
        ({"REMOTE_ADDR": ""}, False),
        ({}, False),
        ({"REMOTE_ADDR": "127.0.0.1", "HTTP_X_FORWARDED_FOR": "127.0.0.1"}, False),
        ({"REMOTE_ADDR": "127.0.0.1", "HTTP_FORWARDED": "for=127.0.0.1"}, False),
        ({"REMOTE_ADDR": "127.0.0.1", "HTTP_VIA": "1.1 proxy"}, False),
        ({"REMOTE_ADDR": "127.0.0.1", "HTTP_X_REAL_IP": "127.0.0.1"}, False),
    ],
)
def test_local_is_loopback_without_a_proxy(environ: dict[str, str], local: bool) -> None:
    assert is_local(environ) is local
