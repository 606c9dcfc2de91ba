"""What the original's tree holds, in our words: API keys, rights of topics, blacklist.

Below its root (by default /fe3c/cambria/config) the original keeps `apikeys/<key>`,
`topics/<topic>` and `ipBlacklist`. Each value is one Java string of JSON; those of API keys are
encrypted first where the installation has a key for that. What cannot be read is told, node by
node, and keeps nothing else from being read: a tree that is years old has all sorts of things in
it. The alternative, to ask the original's HTTP interface, gives no secrets away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import orjson

from router.access.addresses import BLACKLIST_RECORDS, normal
from router.access.authorizer import TOPIC_RECORDS
from router.errors import BadRequestError
from router.migration import java
from router.migration.cipher import Cipher
from router.model import TopicName
from router.services import keys
from router.services.keys import ApiKey
from router.services.record_moving import MovableRecord
from router.services.rights import NO_OWNER, TopicRights

ROOT: Final = "/fe3c/cambria/config"


class OriginalTree(Protocol):
    """The original's ZooKeeper, read only; calls raise CoordinationUnavailableError."""

    def children(self, path: str) -> list[str]:
        """Return the names below a node, none when there is no such node."""
        ...

    def values(self, paths: list[str]) -> list[bytes | None]:
        """Return what these nodes hold, None for one that is not there."""
        ...


@dataclass(slots=True)
class Original:
    """All that was found; `unreadable` has a sentence for each node that could not be read."""

    found: list[MovableRecord] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def take(self, path: str, reading: Callable[[], MovableRecord | None]) -> None:
        """Add what a node amounts to, None: to nothing; or why it cannot be read."""
        try:
            found = reading()
        except (ValueError, BadRequestError) as error:
            self.unreadable.append(f"{path}: {error}")
        else:
            if found is not None:
                self.found.append(found)


def read(
    tree: OriginalTree, root: str, cipher: Cipher | None, named: Callable[[str], TopicName]
) -> Original:
    """Read everything below the root; `named` makes topics of the original's names."""
    root, original = root.rstrip("/"), Original()
    for path, name, data in _below(tree, f"{root}/apikeys"):
        original.take(path, partial(api_key, name, data, cipher))
    for path, name, data in _below(tree, f"{root}/topics"):
        original.take(path, partial(topic, name, data, named))
    path = f"{root}/ipBlacklist"
    try:
        listed = addresses(tree.values([path])[0] or b"")
    except ValueError as error:
        original.unreadable.append(f"{path}: {error}")
    else:
        for entry in listed:
            original.take(path, partial(address, entry))
    return original


def _below(tree: OriginalTree, path: str) -> Iterator[tuple[str, str, bytes]]:
    names = sorted(tree.children(path))
    values = tree.values([f"{path}/{name}" for name in names])
    for name, value in zip(names, values, strict=True):
        yield f"{path}/{name}", name, value or b""


def api_key(name: str, data: bytes, cipher: Cipher | None) -> MovableRecord | None:
    """Read one API key, None: nothing is there; raise ValueError saying why it is none."""
    text = java.string(data)
    if not text:
        return None
    found = _object(_opened(text, cipher))
    secret = _text(found, "secret")
    if not secret or found.get("key", name) != name:
        raise ValueError("it is no API key of that name")
    if found.get("enabled") is False:
        raise ValueError("this key is disabled; here there are no such keys")
    aux = found.get("aux")
    about = aux if isinstance(aux, dict) else {}
    key = ApiKey(name, secret, _text(about, "email"), _text(about, "description"))
    return MovableRecord(keys.KIND, name, key.dump(), key.email)


def topic(name: str, data: bytes, named: Callable[[str], TopicName]) -> MovableRecord | None:
    """Return the owner of a topic, None: it has none; raise ValueError, BadNameError."""
    text = java.string(data)
    found = _object(text) if text else {}
    made = TopicRights(
        _text(found, "owner"),
        _allowed(found, "readers"),
        _allowed(found, "writers"),
        _text(found, "description"),
        found.get("txenabled") is True,
    )
    if made == NO_OWNER:
        return None
    summary = f"owner {made.owner or 'nobody'}"
    if made.owner:
        summary += f", {len(made.readers)} readers, {len(made.writers)} writers"
    return MovableRecord(TOPIC_RECORDS, str(named(name)), made.dump(), summary)


def addresses(data: bytes) -> list[str]:
    """Read the blacklist; raise ValueError."""
    text = java.string(data)
    found = _json(text) if text else []
    if not isinstance(found, list):
        raise ValueError("it is no JSON array")  # noqa: TRY004 - what is wrong is the data
    return [str(entry) for entry in found if entry is not None]


def address(text: str) -> MovableRecord:
    """Read one entry of the blacklist; raise BadRequestError."""
    return MovableRecord(BLACKLIST_RECORDS, normal(text), b"{}")


def _opened(text: str, cipher: Cipher | None) -> str:
    if text.lstrip().startswith("{"):
        return text
    if cipher is None:
        raise ValueError("it is encrypted: give --properties, or --key and --iv")
    try:
        return cipher.decrypt(text)
    except ValueError as error:
        raise ValueError("it cannot be decrypted with this key and IV") from error


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError("it is no JSON") from error


def _object(text: str) -> dict[str, Any]:
    found = _json(text)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - the same
    return found


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")  # noqa: TRY004 - the same
    return value


def _allowed(found: dict[str, Any], name: str) -> frozenset[str]:
    listed = found.get(name)
    allowed = listed.get("allowed", []) if isinstance(listed, dict) else []
    if not isinstance(allowed, list) or not all(isinstance(key, str) for key in allowed):
        raise ValueError(f"{name} is no list of keys")
    return frozenset(allowed)
