"""Python programs of other people with packages that the tests' own environment cannot hold.

    python -m tests.servers.environments    makes every environment, before the tests run

Every version that matters is pinned here. An environment is complete or absent: it is made beside
its folder, which is renamed when pip says that it is done, and the folder's name holds the hash of
the pins and of Python's version. Only the standard library is used.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tests.servers.maven import MissingServerError, cache, locked

INSTALL_SECONDS = 600.0
PINS: dict[str, tuple[str, ...]] = {
    # Quix wants a confluent-kafka before the one whose scenarios run in tests/kafka
    "stream-processors": (
        "quixstreams==3.28.1",
        "confluent-kafka==2.12.2",
        "rocksdict==0.3.29",
    ),
}


def interpreter(name: str) -> Path:
    """Return the Python of one of PINS, installed if need be; raises MissingServerError."""
    made = repr((PINS[name], sys.version_info[:2]))
    folder = cache() / f"{name}-{hashlib.sha256(made.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        with locked(cache() / f"{name}.lock"):
            if not folder.is_dir():
                _install(name, folder)
    return folder / "bin" / "python"


def _install(name: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder.parent) as scratch:
        made = Path(scratch) / "environment"
        venv.create(made, with_pip=True)
        command = [str(made / "bin" / "python"), "-m", "pip", "install", "-q", *PINS[name]]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=INSTALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MissingServerError(
                f"pip did not install {', '.join(PINS[name])} within {INSTALL_SECONDS:.0f} s"
            ) from None
        if done.returncode != 0:
            reason = done.stderr.decode(errors="replace").strip()[-500:]
            raise MissingServerError(f"pip cannot install {', '.join(PINS[name])}: {reason}")
        made.rename(folder)


def main() -> None:
    """Make everything; one sentence and status 1 when something cannot be had."""
    try:
        for name in PINS:
            interpreter(name)
    except MissingServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
