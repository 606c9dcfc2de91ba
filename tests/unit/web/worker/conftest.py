"""The process under gevent, in which tests of a module run, ends with the module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.web.worker.greenlets import end_children


@pytest.fixture(autouse=True, scope="module")
def process_under_gevent() -> Iterator[None]:
    """End it, and see that nothing fails then."""
    yield
    end_children()
