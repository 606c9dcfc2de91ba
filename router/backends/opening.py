"""From settings to an open node and backend, found by the scheme of the backend's URL."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, cast

from router.backends import Backend, Node
from router.errors import SettingError
from router.settings import Settings, without_password

if TYPE_CHECKING:
    from router.backends.embedded.administration import Administration

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
    from router.backends import embedded  # noqa: PLC0415

    return embedded.open_node(settings)


def open_administration(settings: Settings, node: Node) -> Administration | None:
    """Return the administration of the node's broker, None: messages do not live there."""
    if scheme(settings) != "embedded":
        return None
    from router.backends.embedded import BrokerNode, administration  # noqa: PLC0415 - see above

    if not isinstance(node, BrokerNode):
        return None
    return administration.Administration(node.link, settings.seconds("backend.timeout"))


def open_backend(settings: Settings, node: Node) -> Backend:
    """Return the backend of an entry point in `router.backends`; raise SettingError for others."""
    found = list(entry_points(group=GROUP, name=scheme(settings)))
    if not found:
        known = ", ".join(sorted(entry.name for entry in entry_points(group=GROUP)))
        url = without_password(settings.text("backend.url"))
        raise SettingError(f"backend.url = {url!r}: there is no such backend; known are {known}")
    opener = cast("Callable[[str, Settings, Node], Backend]", found[0].load())
    return opener(settings.text("backend.url"), settings, node)
