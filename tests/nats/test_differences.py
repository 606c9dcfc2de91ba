"""The page "Differences from nats-server" has every difference that scenarios show."""

from __future__ import annotations

import pytest

from tests.docs.console import ROOT
from tests.nats.differences import DIFFERENCES

PAGE = " ".join((ROOT / "docs" / "nats-differences.md").read_text("utf-8").split())


@pytest.mark.parametrize("name", DIFFERENCES)
def test_every_difference_is_on_the_page(name: str) -> None:
    assert DIFFERENCES[name].why in PAGE
