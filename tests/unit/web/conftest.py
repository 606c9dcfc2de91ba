"""Fixtures of the HTTP side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.unit.web.applications import Site


@pytest.fixture
def sites() -> Iterator[Callable[..., Site]]:
    """Makes applications with settings of the test's own."""
    made: list[Site] = []

    def make(**settings: str) -> Site:
        made.append(Site(settings))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(sites: Callable[..., Site]) -> Site:
    """An application with the default settings."""
    return sites()
