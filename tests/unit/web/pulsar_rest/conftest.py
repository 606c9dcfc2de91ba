"""Topics of the memory backend, and clients of PIP 64's calls on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from router.model import TopicInfo, TopicName
from router.model.policies import Policies
from tests.unit.web.applications import Site
from tests.unit.web.pulsar_rest.rest import Rest


def make_topic(
    site: Site, name: str, partitions: int = 0, policies: Policies | None = None
) -> Rest:
    """Make a topic; return a client of it."""
    topic = TopicName.parse(name)
    site.backend.create_topic(TopicInfo(topic, partitions, policies or Policies()), 5)
    return Rest(site.client, topic.local, f"/topics/{topic.tenant}/{topic.namespace}/")


_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    """One application for the tests of a module: each has topics of its own."""
    site = Site({})
    yield site
    site.close()


@pytest.fixture
def site(shared: Site) -> Site:
    """The shared application, with nothing left of other tests but their topics."""
    shared.backend.published.clear()
    shared.backend.publishing.clear()
    return shared


@pytest.fixture
def rest(site: Site) -> Rest:
    """A plain topic."""
    return make_topic(site, f"plain-{next(_numbers)}")


@pytest.fixture
def parted(site: Site) -> Rest:
    """A topic of four partitions."""
    return make_topic(site, f"parted-{next(_numbers)}", 4)


@pytest.fixture
def topics(sites: Callable[..., Site]) -> Callable[..., tuple[Site, Rest]]:
    """Makes a topic of an application with settings of the test's own."""

    def make(
        partitions: int = 0, policies: Policies | None = None, **settings: str
    ) -> tuple[Site, Rest]:
        site = sites(**settings)
        return site, make_topic(site, "t", partitions, policies)

    return make
