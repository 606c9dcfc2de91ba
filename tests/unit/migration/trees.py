"""Trees as an original's ZooKeeper holds them, without the ZooKeeper."""

from __future__ import annotations

import gzip
from pathlib import Path

# The key and IV with which golden/Original.java encrypts.
KEY = "AAECAwQFBgcICQoLDA0ODw=="
IV = "Dw4NDAsKCQgHBgUEAwIBAA=="


def golden() -> dict[str, bytes]:
    """Return what the original's own classes wrote, by path below the root."""
    file = Path(__file__).parent / "golden" / "original.txt.gz"
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    assert lines[0].startswith("# 17.0.15")
    return {path: bytes.fromhex(data) for path, data in (line.split() for line in lines[1:])}


class MemoryTree:
    """A tree in memory; nodes above others exist without being named."""

    def __init__(self, nodes: dict[str, bytes | None], root: str = "") -> None:
        self.nodes = {root + path: value for path, value in nodes.items()}

    def children(self, path: str) -> list[str]:
        """Return the names below a node."""
        below = [node[len(path) + 1 :] for node in self.nodes if node.startswith(f"{path}/")]
        return sorted({name.partition("/")[0] for name in below}, reverse=True)

    def values(self, paths: list[str]) -> list[bytes | None]:
        """Return what these nodes hold."""
        return [self.nodes.get(path) for path in paths]
