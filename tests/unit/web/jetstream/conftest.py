from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.web.applications import Site
from tests.unit.web.jetstream.streams import FakeStreams


@pytest.fixture
def streams() -> FakeStreams:
    return FakeStreams()


Open = Callable[..., Site]


@pytest.fixture
def opened(streams: FakeStreams, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens sites whose streams are `streams`."""
    monkeypatch.setattr("router.services.jetstream.topics.TopicStreams", lambda *_: streams)
    sites: list[Site] = []

    def open_site(**settings: Any) -> Site:
        sites.append(Site(settings))
        return sites[-1]

    yield open_site
    for site in sites:
        site.close()


@pytest.fixture
def site(opened: Open) -> Site:
    return opened()
