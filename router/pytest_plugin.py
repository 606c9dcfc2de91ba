"""The fixture `dragoman` for tests of other projects: pytest finds it by its entry point."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from router.embedding import Router


@pytest.fixture(scope="session")
def dragoman() -> Iterator[Router]:
    """Return a router that all tests of the session share: each takes topics of its own."""
    from router.embedding import Router  # noqa: PLC0415 - loaded where a test names the fixture

    with Router() as router:
        yield router
