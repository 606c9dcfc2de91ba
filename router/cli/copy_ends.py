"""The two ends of `router copy`: a configuration file, a data folder, or a backend's URL."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from router.backends import Backend, opening
from router.cli.options import settings_for
from router.errors import BadRequestError, SettingError
from router.errors.quoting import quoted
from router.node import Node
from router.services.copying.fidelity import StoreKind
from router.settings import Settings, load, without_password

# A batch is inflated however large it is: a copy is no poll, whose answer is bounded.
MAX_INFLATED: Final = "64M"
MAX_READERS: Final = "1100"
ENTRY_SHARE: Final = 0.75
"""How much of the largest entry a batch may fill by the weight of its messages."""
NATS: Final = frozenset({"nats", "tls"})
"""The schemes of URLs of NATS servers, which a copy can only read."""
METADATA: Final = "metadata.db"
"""What a data folder has as soon as a broker used it."""
_STATE_HOME: Final = "XDG_STATE_HOME"


@runtime_checkable
class PulsarStore(Protocol):
    """What is asked of a store that speaks the Pulsar protocol."""

    def is_ours(self, timeout: float) -> bool:
        """Return whether a broker of ours answers, not Apache Pulsar."""
        ...

    def max_entry(self, timeout: float) -> int:
        """Return how many bytes an entry may have."""
        ...


@dataclass(frozen=True, slots=True)
class EndAddress:
    """What one argument names; `name` is the same for all ways to name the same store.

    `registry`: the node's registry belongs to it; `folder`: the node's data folder, if it has one.
    """

    name: str
    settings: Settings
    registry: bool
    folder: Path | None


@dataclass(frozen=True, slots=True)
class End:
    """An end that is open."""

    address: EndAddress
    node: Node
    backend: Backend

    @property
    def timeout(self) -> float:
        """How many seconds one call may take."""
        return self.address.settings.seconds("backend.timeout")

    def kind(self) -> StoreKind:
        """Return what the store is made of; asks it, if its URL does not tell."""
        scheme = opening.scheme(self.address.settings)
        if scheme == "kafka":
            return StoreKind.KAFKA
        if scheme == "embedded":
            return StoreKind.EMBEDDED
        if isinstance(self.backend, PulsarStore):
            return StoreKind.EMBEDDED if self.backend.is_ours(self.timeout) else StoreKind.PULSAR
        return StoreKind.MEMORY

    def max_batch(self, limit: int) -> int:
        """Return how many bytes a batch may have here, by the weight of its messages."""
        if isinstance(self.backend, PulsarStore):
            return min(limit, int(self.backend.max_entry(self.timeout) * ENTRY_SHARE))
        return limit


def address(text: str) -> EndAddress:
    """Return what an argument of the command names; raise SettingError."""
    own = {"topics__auto_create": "false"}
    if "://" in text:
        settings = settings_for(None, backend__url=text).replaced("copy", **own)
        _check_lasts(without_password(text), settings)
        return EndAddress(without_password(text), _roomy(settings), registry=False, folder=None)
    path = Path(text)
    if path.suffix == ".cfg":
        settings = load(path, os.environ)
    elif path.is_file():
        raise SettingError(
            f"{quoted(text)} is a file: name a configuration file, *.cfg, a data folder, or the"
            " URL of a backend"
        )
    else:
        settings = settings_for(None, backend__url="embedded", data__dir=str(path.resolve()))
    _check_lasts(text, settings)
    folder = Path(settings.text("data.dir")).resolve()
    url = settings.text("backend.url")
    name = f"embedded:{folder}" if url == "embedded" else without_password(url)
    settings = settings.replaced("copy", **own)
    return EndAddress(name, _roomy(settings), registry=True, folder=folder)


def _check_lasts(text: str, settings: Settings) -> None:
    if opening.scheme(settings) == "memory":
        raise SettingError(f"{quoted(text)}: what is in the memory of a process cannot be copied")


def _roomy(settings: Settings) -> Settings:
    return settings.replaced("copy", consume__max_bytes=MAX_INFLATED, kafka__consumers=MAX_READERS)


def check_apart(source: EndAddress, target: EndAddress) -> None:
    """Raise BadRequestError if there is nothing to copy between two ends.

    Two nodes of one store have records of their own.
    """
    if opening.scheme(target.settings) in NATS:
        raise BadRequestError("TO is a NATS server, which can only be FROM")
    records = source.registry and target.registry and source.folder != target.folder
    if source.name == target.name and not records:
        raise BadRequestError("FROM and TO are the same store: there is nothing to copy")


def is_new(end: EndAddress) -> bool:
    """Return whether an end is a data folder in which nothing was ever stored."""
    embedded = opening.scheme(end.settings) == "embedded"
    return embedded and end.folder is not None and not (end.folder / METADATA).exists()


def opened_empty(end: EndAddress, stack: ExitStack) -> End:
    """Open, in the place of an end that is new, a store that has nothing either."""
    from router.backends import memory  # noqa: PLC0415 - see `opening`

    node = memory.open_node(end.settings)
    stack.callback(node.close)
    backend = memory.open_backend("memory", end.settings, node)
    stack.callback(backend.close)
    return End(end, node, backend)


def opened(end: EndAddress, stack: ExitStack) -> End:
    """Open an end until the stack ends; nothing is asked of it yet."""
    if end.registry:
        node = opening.open_node(end.settings)
    else:
        # A URL names no node, and the leases of one process are enough for a copy.
        from router.backends import memory  # noqa: PLC0415 - see `opening`

        node = memory.open_node(end.settings)
    stack.callback(node.close)
    if opening.scheme(end.settings) in NATS:
        from router.backends import nats  # noqa: PLC0415 - see `opening`

        backend = nats.open_source(end.settings.text("backend.url"), end.settings)
    else:
        backend = opening.open_backend(end.settings, node)
    stack.callback(backend.close)
    return End(end, node, backend)


def state_file(source: EndAddress, target: EndAddress) -> Path:
    """Return where the state of a copy is unless an option says otherwise."""
    name = sha256(f"{source.name}\0{target.name}".encode()).hexdigest()[:16]
    home = os.environ.get(_STATE_HOME) or Path.home() / ".local" / "state"
    folder = target.folder or source.folder or Path(home) / "router"
    return folder / "copies" / f"{name}.db"
