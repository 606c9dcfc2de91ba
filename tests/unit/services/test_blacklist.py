"""Addresses that are served nothing."""

from __future__ import annotations

import time
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.access import addresses
from router.access.addresses import BLACKLIST_RECORDS, Networks, normal, parse_address
from router.errors import BackendUnavailableError, BadRequestError
from router.node.memory import MemoryRegistry
from router.services import blacklist as module
from router.services.blacklist import WorkerBlacklist
from router.sharing.registry import RegistryRecord
from tests.processes import wait_until


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("10.0.0.1/32", "10.0.0.1"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("2001:db8::7/32", "2001:db8::/32"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
        ("0.0.0.0/0", "0.0.0.0/0"),
    ],
)
def test_address_is_written_in_one_way(text: str, written: str) -> None:
    assert normal(text) == written


@pytest.mark.parametrize("text", ["", "x", "10.0.0", "10.0.0.1/33", "10.0.0.1:80", "::1%eth0/12"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError):
        normal(text)


@given(st.ip_addresses())
def test_address_in_ipv6_form_is_the_same(address: IPv4Address | IPv6Address) -> None:
    listed = WorkerBlacklist(MemoryRegistry(), 1)
    listed.add(str(address))
    assert listed.active
    assert listed.holds(str(address))
    if isinstance(address, IPv4Address):
        assert listed.holds(f"::ffff:{address}")
    assert listed.remove(str(address))
    assert not listed.holds(str(address))
    assert not listed.active


@given(address=st.ip_addresses(v=4), base=st.ip_addresses(v=4), bits=st.integers(0, 32))
def test_network_holds_what_is_in_it(address: IPv4Address, base: IPv4Address, bits: int) -> None:
    listed = WorkerBlacklist(MemoryRegistry(), 1)
    listed.add(f"{base}/{bits}")
    inside = address in IPv4Network((base, bits), strict=False)
    assert listed.holds(str(address)) == inside


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_none(text: str) -> None:
    found = parse_address(text)
    assert found is None or ip_address(str(found)) == found
    with suppress(BadRequestError):
        assert normal(normal(text)) == normal(text)


def test_list_that_another_worker_changed_is_read_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BLACKLIST_INTERVAL_SECONDS", 0.01)
    registry = MemoryRegistry()
    here, there = WorkerBlacklist(registry, 1), WorkerBlacklist(registry, 1)
    there.start()
    here.add("10.0.0.1")
    here.add("10.0.0.0/24")
    assert here.names() == ["10.0.0.0/24", "10.0.0.1"]
    wait_until(lambda: there.holds("10.0.0.1"))
    assert there.holds("10.0.0.200")
    assert not there.holds("10.0.1.1")
    assert not here.remove("10.0.0.2")
    here.remove("10.0.0.1")
    here.remove("10.0.0.0/24")
    wait_until(lambda: not there.active)
    there.stop()


def test_list_stays_in_force_while_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLACKLIST_INTERVAL_SECONDS", 0.005)
    registry = MemoryRegistry()
    listed = WorkerBlacklist(registry, 1)
    listed.add("10.0.0.1")
    asked = []

    def fail(*_: object) -> list[RegistryRecord]:
        asked.append(time.monotonic())
        raise BackendUnavailableError

    monkeypatch.setattr(registry, "list", fail)
    listed.start()
    wait_until(lambda: len(asked) > 3)
    assert listed.holds("10.0.0.1")
    listed.stop()


def test_memory_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "MAX_REMEMBERED_ADDRESSES", 10)
    listed = Networks(["10.0.0.0/8"])
    for number in range(100):
        assert not listed.hold(f"192.0.2.{number}")
    assert len(listed._remembered) <= 10
    for text in ("", "unix", "fe80::1%eth0"):
        assert not listed.hold(text)


def test_record_that_is_no_address_holds_up_no_other() -> None:
    registry = MemoryRegistry()
    registry.put(BLACKLIST_RECORDS, "not an address", b"{}", 0, 1)
    listed = WorkerBlacklist(registry, 1)
    listed.add("10.0.0.1")
    assert listed.holds("10.0.0.1")


def test_look_that_ends_late_undoes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = MemoryRegistry()
    listed = WorkerBlacklist(registry, 1)
    read = registry.list

    def slow(kind: str, timeout: float) -> list[RegistryRecord]:
        found = read(kind, timeout)
        monkeypatch.setattr(registry, "list", read)
        listed.add("10.0.0.1")
        return found

    monkeypatch.setattr(registry, "list", slow)
    listed.refresh()
    assert listed.holds("10.0.0.1")
