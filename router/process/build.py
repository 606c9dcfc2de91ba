"""Which build of the router this is: version, and a fingerprint of the package's source files.

A client and the broker of a node name their build and the version of the node protocol when they
meet: builds may differ, the version may not. Sizes and modification times of files are enough to
tell builds apart, and cost a millisecond where hashing their contents would cost ten on every
start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

VERSION: Final = "0.1.0"
NODE_PROTOCOL: Final = 10
"""Version of the commands between the processes of a node (`wire/node/node.proto`, APPENDS).

It grows with each change that a process of the older version would misread or not answer.
"""


@cache
def build_id() -> str:
    """Return this process's build, such as `0.1.0+5f3a9c01d2`: the same for the same files."""
    return f"{VERSION}+{fingerprint(_package())}"


def module_command(module: str) -> list[str]:
    """Return the command that runs a module of this package, run with `module_path()`.

    -P: the working folder may hold a folder that is called router, too.
    """
    return [sys.executable, "-P", "-m", module]


def module_path() -> str:
    """Return the PYTHONPATH by which another process finds this very package."""
    package = str(_package().parent)
    return os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])


def _package() -> Path:
    return Path(__file__).parent.parent


def fingerprint(package: Path) -> str:
    """Return ten hexadecimal digits that change when a .py file below the folder does."""
    files = sorted(_files(str(package), ""))
    text = "\n".join(f"{name} {size} {mtime}" for name, size, mtime in files)
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=5).hexdigest()


def _files(folder: str, prefix: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".py"):
                status = entry.stat()
                yield prefix + entry.name, status.st_size, status.st_mtime_ns
