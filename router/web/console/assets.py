"""The console's style sheet, scripts and icon, as they are in the package."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from importlib import resources
from typing import Final

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOREVER: Final = "public, max-age=31536000, immutable"
AGAIN: Final = "no-cache"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    data: bytes
    kind: str


class Assets:
    """All files, read once; `digest` changes with any of them, and is part of their addresses."""

    def __init__(self) -> None:
        folder = resources.files(__package__) / "static"
        self._files = {
            found.name: Asset(found.read_bytes(), TYPES["." + found.name.rpartition(".")[2]])
            for found in sorted(folder.iterdir(), key=lambda found: found.name)
        }
        whole = b"".join(name.encode() + asset.data for name, asset in self._files.items())
        self.digest = blake2b(whole, digest_size=8).hexdigest()

    def get(self, name: str) -> Asset | None:
        """Return a file, None: there is none of this name."""
        return self._files.get(name)

    def caching(self, digest: str) -> str:
        """Return how long a file may be kept that was asked for under a digest.

        Another digest is of a page of another build, such as a node's that is not yet restarted.
        """
        return FOREVER if digest == self.digest else AGAIN
