"""The seed's check-list, over a store that is not the node's broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http import jetstream
from tests.unit.web.applications import Site
from tests.unit.web.jetstream.streams import SiteClient


@pytest.fixture(scope="module")
def routers() -> Iterator[jetstream.Routers]:
    on, off = Site({}), Site({"jetstream_enabled": "no"})
    jetstream.prepare(SiteClient(on))
    yield jetstream.Routers(SiteClient(on), SiteClient(off))
    on.close()
    off.close()


@pytest.mark.parametrize("check", [check for _, check in jetstream.CHECKLIST])
def test_the_seed_s_item_holds(routers: jetstream.Routers, check: jetstream.Check) -> None:
    check(routers)
