"""From settings to an open node and backend, found by the scheme of the backend's URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, cast

from router.backends import Backend
from router.errors import SettingError
from router.node import Node
from router.settings import Settings, without_password

if TYPE_CHECKING:
    from router.node.administration import Administration
    from router.node.nats import NatsRoad

GROUP: Final = "router.backends"


def scheme(settings: Settings) -> str:
    """Return which kind of backend the settings name."""
    return settings.text("backend.url").partition(":")[0]


def open_node(settings: Settings) -> Node:
    """Return the node: its broker process is dialled when it is first needed.

    Every backend but the one in memory shares the leases of the node's broker process.
    """
    # Either is imported when it is the one: commands should not wait for both.
    if scheme(settings) == "memory":
        from router.backends import memory  # noqa: PLC0415

        return memory.open_node(settings)
    from router.node import client  # noqa: PLC0415

    return client.open_node(settings)


@contextmanager
def opened(settings: Settings) -> Iterator[tuple[Node, Backend]]:
    """Open the node and the backend, and close both at the end."""
    with closing(open_node(settings)) as node, closing(open_backend(settings, node)) as backend:
        yield node, backend


def open_administration(settings: Settings, node: Node) -> Administration | None:
    """Return the administration of the node's broker, None: messages do not live there."""
    if scheme(settings) != "embedded":
        return None
    from router.node import administration, client  # noqa: PLC0415 - see above

    if not isinstance(node, client.BrokerNode):
        return None
    return administration.Administration(node.link, settings.seconds("backend.timeout"))


def open_nats(settings: Settings, node: Node) -> NatsRoad | None:
    """Return the road to the streams of the node's broker, None: messages do not live there."""
    if scheme(settings) != "embedded":
        return None
    from router.node import client, nats  # noqa: PLC0415 - see above

    if not isinstance(node, client.BrokerNode):
        return None
    return nats.NatsRoad(node.link, settings.seconds("backend.timeout"))


def open_backend(settings: Settings, node: Node) -> Backend:
    """Return the backend of an entry point in `router.backends`; raise SettingError for others."""
    opener = _opener(scheme(settings))
    if opener is None:
        known = ", ".join(sorted(entry.name for entry in entry_points(group=GROUP)))
        url = without_password(settings.text("backend.url"))
        raise SettingError(f"backend.url = {url!r}: there is no such backend; known are {known}")
    return opener(settings.text("backend.url"), settings, node)


@cache
def _opener(kind: str) -> Callable[[str, Settings, Node], Backend] | None:
    """Return what opens a kind of backend, None: no package has it.

    Kept, for it takes longer to find than a backend to open: the metadata of each package is read.
    """
    for entry in entry_points(group=GROUP, name=kind):
        return cast("Callable[[str, Settings, Node], Backend]", entry.load())
    return None
