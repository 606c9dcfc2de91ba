from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from router.web.front import DIRECT
from tests.unit.web.applications import Site
from tests.unit.web.jetstream.streams import FakeStreams

STREAMS = "router.services.jetstream.topics.TopicStreams"
Open = Callable[..., Site]


@pytest.fixture(scope="module")
def all_streams() -> FakeStreams:
    return FakeStreams()


@pytest.fixture
def streams(all_streams: FakeStreams) -> FakeStreams:
    """Streams that were asked nothing yet, and answer nothing."""
    all_streams.asked.clear()
    all_streams.rules.clear()
    all_streams.acked.clear()
    all_streams.result = None
    return all_streams


@pytest.fixture(scope="module")
def shared(all_streams: FakeStreams) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(STREAMS, lambda *_: all_streams)
        made = Site({})
    yield made
    made.close()


@pytest.fixture
def site(shared: Site, streams: FakeStreams) -> Site:
    """A site whose streams are `streams`."""
    del streams
    return shared


@pytest.fixture
def through_flask(shared: Site) -> Iterator[None]:
    """No view answers from the environment itself."""
    direct = shared.app.extensions[DIRECT]
    shared.app.extensions[DIRECT] = {}
    yield
    shared.app.extensions[DIRECT] = direct


@pytest.fixture
def opened(streams: FakeStreams, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens sites with settings of their own, whose streams are `streams`."""
    monkeypatch.setattr(STREAMS, lambda *_: streams)
    sites: list[Site] = []

    def open_site(**settings: Any) -> Site:
        sites.append(Site(settings))
        return sites[-1]

    yield open_site
    for site in sites:
        site.close()
