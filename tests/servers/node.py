"""Programs in JavaScript with their packages: installed once, kept in the cache folder.

    python -m tests.servers.node    installs every program, before the tests run

Every version is pinned in the program's package-lock.json. A folder is complete or absent: npm
fills one beside it, which is renamed when npm says that it is done, and its name holds the hash of
the program. Only the standard library is used.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers.maven import MissingServerError, cache, locked, program, require

INSTALL_SECONDS = 300.0
NATS = Path(__file__).parent.parent / "nats" / "javascript"


def installed(source: Path) -> Path:
    """Return a copy of a folder of JavaScript with its packages; raises MissingServerError."""
    require("node", "npm")
    digest = hashlib.sha256(b"".join(one.read_bytes() for one in sorted(source.iterdir())))
    folder = cache() / f"{source.parent.name}-javascript-{digest.hexdigest()[:16]}"
    if not folder.is_dir():
        with locked(cache() / f"{source.parent.name}-javascript.lock"):
            if not folder.is_dir():
                _install(source, folder)
    return folder


def _install(source: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=folder.parent) as scratch:
        made = Path(scratch) / "program"
        shutil.copytree(source, made)
        command = [str(program("npm")), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            done = subprocess.run(
                command,
                cwd=made,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=INSTALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MissingServerError(
                f"npm did not install {source.name} within {INSTALL_SECONDS:.0f} s"
            ) from None
        if done.returncode != 0:
            printed = done.stderr.decode(errors="replace").strip()
            raise MissingServerError(f"npm cannot install {source.name}: {printed[-300:]}")
        made.rename(folder)


def main() -> None:
    """Install everything; one sentence and status 1 when something cannot be had."""
    try:
        installed(NATS)
    except MissingServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
