"""The jars of Spark's connectors: fetched once from Maven Central, kept in the user's cache.

Every file is pinned by version and by the hash that stands here, so what runs is what was tested,
whichever mirror or proxy gave it. A folder of jars is complete or absent: Maven fills one beside
it, which is renamed when every hash fits. Its name holds the hash of the pins.

Maven fetches, because it knows the mirrors, proxies and credentials of the place it runs at. The
alternative, Spark's own `spark.jars.packages`, resolves versions at each start, over the
network, and checks no hash that we know. Two versions are not what the poms ask for: the last
final token provider, which Kafka's connector needs, is older than Spark.

Commands that take minutes run with a deadline, and with signs of life for the terminal.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from router.errors import SettingError

FETCH_SECONDS: Final = 900.0
# file name -> (group:artifact:version, sha256)
KAFKA: Final[Mapping[str, tuple[str, str]]] = {
    "spark-sql-kafka-0-10_2.13-4.2.0.jar": (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    "spark-token-provider-kafka-0-10_2.13-4.0.0.jar": (
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    "kafka-clients-3.9.2.jar": (
        "org.apache.kafka:kafka-clients:3.9.2",
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    ),
    "commons-pool2-2.13.1.jar": (
        "org.apache.commons:commons-pool2:2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
}
DELTA: Final[Mapping[str, tuple[str, str]]] = {
    "delta-spark_4.2_2.13-4.4.0.jar": (
        "io.delta:delta-spark_4.2_2.13:4.4.0",
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    ),
    "delta-storage-4.4.0.jar": (
        "io.delta:delta-storage:4.4.0",
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    ),
}
POSTGRESQL: Final[Mapping[str, tuple[str, str]]] = {
    "postgresql-42.7.14.jar": (
        "org.postgresql:postgresql:42.7.14",
        "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c",
    ),
}
CONNECTORS: Final = {"kafka": KAFKA, "delta": DELTA, "postgresql": POSTGRESQL}
_ALL: Final = {**KAFKA, **DELTA, **POSTGRESQL}
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_POM: Final = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>router</groupId><artifactId>connectors</artifactId><version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
# What each of them needs is pinned here as well, or comes with Spark.
_DEPENDENCY: Final = """    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions>
        <exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>"""
PROGRESS_SECONDS: Final = 10.0
Notify = Callable[[str], None]
"""Shows a line to the user."""


def cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this very set of jars, there or not."""
    usual = Path("~/.cache").expanduser()
    root = Path(environ.get("XDG_CACHE_HOME") or usual) / "dragoman"
    pins = "\n".join(f"{name} {pin} {digest}" for name, (pin, digest) in sorted(_ALL.items()))
    return root / f"connectors-{hashlib.sha256(pins.encode()).hexdigest()[:16]}"


def jars(connector_names: Iterable[str]) -> list[Path]:
    """Return the jars of these CONNECTORS; raise SettingError if they were not installed."""
    folder = cache()
    found = [folder / name for connector in connector_names for name in CONNECTORS[connector]]
    if missing := [path.name for path in found if not path.is_file()]:
        raise SettingError(
            f"Spark's connectors are not installed ({missing[0]}): `router pipeline install`"
            " fetches them from Maven Central, once"
        )
    return found


def install(notify: Notify) -> Path:
    """Return the folder of all jars, fetched if need be; raise SettingError with one sentence.

    `say` shows what is done meanwhile.
    """
    folder = cache()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "connectors.lock").open("w") as lock:
        # Another installation that fetches has a deadline.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            notify(f"Fetching {len(_ALL)} jars from Maven Central, about a minute, into {folder}")
            _fetch(folder, notify)
    check(folder)
    return folder


def check(folder: Path) -> None:
    """Raise SettingError unless every jar is what was pinned."""
    for name, (pin, digest) in _ALL.items():
        path = folder / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
        if found != digest:
            raise SettingError(
                f"{pin} is not what was pinned: its SHA-256 is {found}, not {digest};"
                f" delete {folder} and look at where it was fetched from"
            )


def _fetch(folder: Path, notify: Notify) -> None:
    if (maven := shutil.which("mvn")) is None:
        raise SettingError(
            "Maven is missing, which fetches Spark's connectors: install it, on Debian with"
            " apt-get install maven"
        )
    with tempfile.TemporaryDirectory(prefix="connectors-", dir=folder.parent) as scratch:
        (Path(scratch) / "pom.xml").write_text(_pom(), "utf-8")
        found = Path(scratch) / "jars"
        _run(
            [maven, "-B", "-q", f"{_PLUGIN}:copy-dependencies", f"-DoutputDirectory={found}"],
            scratch,
            notify,
        )
        check(found)
        found.rename(folder)


def _run(command: list[str], folder: str, notify: Notify) -> None:
    try:
        done = run_followed(command, "Fetching", notify, FETCH_SECONDS, cwd=Path(folder))
    except subprocess.TimeoutExpired:
        raise SettingError(
            f"Maven did not fetch Spark's connectors within {FETCH_SECONDS:.0f} s"
        ) from None
    if done.returncode != 0:
        text = done.stdout.decode(errors="replace").strip()
        reason = text.splitlines()[0] if text else f"exit status {done.returncode}"
        raise SettingError(f"Maven cannot fetch Spark's connectors: {reason}")


def _pom() -> str:
    lines = [_DEPENDENCY.format(*pin.split(":")) for pin, _ in _ALL.values()]
    return _POM.format(dependencies="\n".join(lines))


def run_followed(
    command: Sequence[str],
    what: str,
    notify: Notify,
    timeout: float,
    *,
    cwd: Path | None = None,
    every: float = PROGRESS_SECONDS,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command and return what it wrote; say every so many seconds how long `what` takes.

    Raises TimeoutExpired after `timeout` seconds, when the command is killed, and OSError.
    """
    begun = time.monotonic()
    with subprocess.Popen(  # noqa: S603 - the callers' own programs, by their full paths
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        while True:
            try:
                output, _ = process.communicate(timeout=every)
            except subprocess.TimeoutExpired:
                took = time.monotonic() - begun
                if took >= timeout:
                    process.kill()
                    raise
                notify(f"{what}: {took:.0f} s (at most {timeout:.0f} s)")
            except BaseException:
                process.kill()
                raise
            else:
                return subprocess.CompletedProcess(command, process.returncode, output)
