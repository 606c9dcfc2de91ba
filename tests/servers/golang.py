"""Programs in Go: built once, kept in the cache folder beside the jars, modules included."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers.maven import MissingServerError, cache, locked, program, require

BUILD_SECONDS = 900.0
INTEROP = Path(__file__).parent.parent / "interop" / "golang"
KAFKA = Path(__file__).parent.parent / "kafka" / "golang"
NATS = Path(__file__).parent.parent / "nats" / "golang"
BENCH = Path(__file__).parent.parent.parent / "bench" / "go"
NATS_SERVER = Path(__file__).parent / "nats-server"
JUDGE = Path(__file__).parent.parent / "histories" / "judge"


def built(source: Path, package: str = ".") -> Path:
    """Return the program of a folder of Go, built if need be; raises MissingServerError.

    `package` is the program's: one of the folder itself, or of a module that its go.mod names.
    """
    require("go")
    files = sorted(path for path in source.iterdir() if path.name != "README.md")
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    binary = cache() / f"{source.parent.name}-{source.name}-{digest}"
    if not binary.exists():
        with locked(cache() / f"{source.parent.name}-{source.name}.lock"):
            if not binary.exists():
                _build(source, package, binary)
    return binary


def nats_server() -> Path:
    """Return the program nats-server, built from its module if need be."""
    return built(NATS_SERVER, "github.com/nats-io/nats-server/v2")


def module_folder(source: Path, module: str) -> Path:
    """Return where Go keeps a module of a folder's go.mod; it is fetched if need be."""
    require("go")
    done = subprocess.run(
        [str(program("go")), "mod", "download", "-json", module],
        cwd=source,
        env=os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise MissingServerError(f"Go cannot fetch {module}: {done.stdout[-300:]!r}")
    return Path(json.loads(done.stdout)["Dir"])


def _build(source: Path, package: str, binary: Path) -> None:
    """Have Go fetch the modules and build beside the binary, which is renamed when it is whole."""
    with tempfile.TemporaryDirectory(dir=binary.parent) as scratch:
        made = Path(scratch) / "program"
        command = [str(program("go")), "build", "-buildvcs=false", "-o", str(made), package]
        try:
            done = subprocess.run(
                command,
                cwd=source,
                # As it is installed: no other release of Go is fetched.
                env=os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MissingServerError(
                f"Go did not build {source.name} within {BUILD_SECONDS:.0f} s"
            ) from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()
            raise MissingServerError(f"Go cannot build {source.name}: {said[-300:]}")
        made.rename(binary)


def main() -> None:
    """Build everything; one sentence and status 1 when something cannot be had."""
    try:
        built(INTEROP)
        built(KAFKA)
        built(NATS)
        built(BENCH)
        built(JUDGE)
        nats_server()
    except MissingServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
