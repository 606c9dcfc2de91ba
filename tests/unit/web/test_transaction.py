"""Transaction ids."""

from __future__ import annotations

import re
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from router.web.requests import DmaapTransactionIds

FORM = re.compile(r"(\d\d-\d\d-\d{4}::\d\d:\d\d:\d\d):(\d{3})::([^:]+(?::[^:]+)*)::(\d+)")


@given(now_ms=st.integers(0, 4_000_000_000_000), address=st.ip_addresses().map(str))
def test_transaction_id_has_the_form_of_the_guide(now_ms: int, address: str) -> None:
    match = FORM.fullmatch(DmaapTransactionIds(lambda: now_ms * 1_000_000).next(address))
    assert match is not None
    shown = datetime.strptime(match[1], "%d-%m-%Y::%I:%M:%S")
    assert shown.minute == now_ms // 60_000 % 60
    assert int(match[2]) == now_ms % 1000
    assert "::" not in match[3]
    assert match[4].startswith(shown.strftime("%d%m%Y"))


def test_transaction_ids_differ_within_a_millisecond() -> None:
    ids = DmaapTransactionIds(lambda: 1_451_308_730_682_000_000)
    made = [ids.next("10.0.0.1") for _ in range(1_000)]
    assert len(set(made)) == 1_000
    assert made[0].startswith("28-12-2015::01:18:50:682::10.0.0.1::28122015131850")


def test_transaction_id_without_an_address_names_none() -> None:
    assert "::0.0.0.0::" in DmaapTransactionIds(lambda: 0).next("")


def test_transaction_id_of_an_odd_address_keeps_its_fields_apart() -> None:
    assert DmaapTransactionIds(lambda: 0).next("unix::path").count("::") == 3
