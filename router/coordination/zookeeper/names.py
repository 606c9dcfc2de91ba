"""Where things are in ZooKeeper: paths, and names that may stand in them.

    <chroot>/router/leases/<topic>/<group>/<partition>/<node>@<token>-<sequence>
    <chroot>/router/ids/<topic>/<group>/<consumer id>@<node>~<token>

Topics, groups, ids and nodes are escaped as in URLs, so that `/` and `@` only ever separate. A
*token* names one start of one node, or one place in a queue: a node that is started again does not
take for its own what its last start left behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from router.coordination import Lease

ROOT: Final = "/router"
LEASES: Final = f"{ROOT}/leases"
IDS: Final = f"{ROOT}/ids"

# What ZooKeeper does not take as a name, and quoting leaves as it is.
_RESERVED: Final = {"": "%", ".": "%2E", "..": "%2E%2E"}


def escape(name: str) -> str:
    """Return a name as one part of a path."""
    quoted = quote(name, safe="")
    return _RESERVED.get(quoted, quoted)


def unescape(part: str) -> str:
    """Return the name that a part of a path stands for."""
    return "" if part == "%" else unquote(part)


def group_path(topic: str, subscription: str) -> str:
    """Return where the leases of a group are, relative to the chroot."""
    return f"{LEASES}/{escape(topic)}/{escape(subscription)}"


def lease_path(lease: Lease) -> str:
    """Return where the queue for a lease is, relative to the chroot."""
    return f"{group_path(lease.topic, lease.subscription)}/{lease.partition}"


def ids_path(topic: str, subscription: str) -> str:
    """Return where the live ids of a group are, relative to the chroot."""
    return f"{IDS}/{escape(topic)}/{escape(subscription)}"


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """One entry of a queue: which node stands there, and where; the lowest holds the lease."""

    part: str
    node: str
    token: str
    sequence: int


def place(part: str) -> QueuePlace | None:
    """Read an entry's name; None: it is none of ours."""
    who, _, number = part.rpartition("-")
    node, at, token = who.rpartition("@")
    if not at or not number.lstrip("-").isdigit():
        return None
    return QueuePlace(part, unescape(node), token, int(number))


def queue(parts: list[str]) -> list[QueuePlace]:
    """Return the entries of a queue in their order."""
    places = (place(part) for part in parts)
    return sorted((found for found in places if found), key=lambda found: found.sequence)


def live_part(consumer: str, node: str, token: str) -> str:
    """Name the entry that tells of a live id."""
    return f"{escape(consumer)}@{escape(node)}~{token}"


def live_id(part: str) -> tuple[str, str, str]:
    """Return the consumer id, the node and the token that such an entry names."""
    consumer, _, rest = part.rpartition("@")
    node, _, token = rest.rpartition("~")
    return unescape(consumer), unescape(node), token
