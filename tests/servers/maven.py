"""The jars of other people's servers and clients: fetched once with Maven, kept in a cache folder.

    python -m tests.servers.maven    fetches everything that the tests start, before they run

Every version is pinned here, and nothing is excluded: what the authors' own poms ask for is what
runs. A folder of jars is complete or absent: Maven fills one beside it, which is renamed when Maven
says that it is done. The folder's name holds the hash of the pom, so that a new pin never meets old
jars. Only the standard library is used: this runs before anything is installed. The alternative,
servers in containers, needs a daemon that a fresh machine does not have.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

FETCH_SECONDS = 900.0
PINS: dict[str, tuple[str, ...]] = {
    "kafka": (
        "org.apache.kafka:kafka_2.13:4.3.1",
        "org.apache.kafka:kafka-tools:4.3.1",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ),
    # the newest definitions of messages, with the generated classes that are their oracle
    "kafka-clients": (
        "org.apache.kafka:kafka-clients:4.4.0",
        # the JSON converters need what the client's pom calls "provided"
        "com.fasterxml.jackson.core:jackson-databind:2.19.0",
    ),
    # definitions that the clients' jar lacks, with their classes; none of their dependencies
    "kafka-server": tuple(
        f"org.apache.kafka:kafka-{part}:4.4.0"
        for part in (
            "group-coordinator",
            "metadata",
            "storage",
            "share-coordinator",
            "transaction-coordinator",
            "raft",
        )
    ),
    # earlier definitions
    **{
        f"kafka-clients-{version}": (f"org.apache.kafka:kafka-clients:{version}",)
        for version in ("2.8.2", "3.9.1", "4.1.0")
    },
    # the newest client of Kafka 3, which is the one of Spark's connector
    "kafka-clients-3": (
        "org.apache.kafka:kafka-clients:3.9.2",
        "com.fasterxml.jackson.core:jackson-databind:2.19.0",
    ),
    # what stands on compacted topics: the state of Streams, the configs and offsets of Connect
    "kafka-streams": (
        "org.apache.kafka:kafka-streams:4.3.1",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    "kafka-connect": (
        "org.apache.kafka:connect-runtime:4.3.1",
        "org.apache.kafka:connect-file:4.3.1",
        "org.apache.kafka:connect-json:4.3.1",
    ),
    "zookeeper": (
        "org.apache.zookeeper:zookeeper:3.9.5",
        # its pom calls these two "provided", and it does not start without them
        "io.dropwizard.metrics:metrics-core:4.1.12.1",
        "org.xerial.snappy:snappy-java:1.1.10.5",
        "ch.qos.logback:logback-classic:1.3.15",
    ),
    "cambria": ("com.att.nsa:cambriaClient:1.2.1-oss",),
    "pulsar": ("org.apache.pulsar:pulsar-broker:4.2.4",),
    "pulsar-client": (
        "org.apache.pulsar:pulsar-client:4.2.4",
        "org.apache.pulsar:pulsar-client-admin:4.2.4",
    ),
}
# Poms whose versions rule over those that the dependencies name: without it the broker gets jars
# that do not fit one another, and dies with NoSuchMethodError.
MANAGED = {"pulsar": "org.apache.pulsar:pulsar:4.2.4"}
# Jars that are copied without what they depend on: definitions are read from them.
ALONE = {"kafka-server", "kafka-clients-2.8.2", "kafka-clients-3.9.1", "kafka-clients-4.1.0"}
POM = """<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>router.tests</groupId>
  <artifactId>{name}</artifactId>
  <version>1</version>
{managed}  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
DEPENDENCY = """    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{alone}
    </dependency>"""
EXCLUSIONS = """
      <exclusions>
        <exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>"""
MANAGEMENT = """  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
        <type>pom</type><scope>import</scope>
      </dependency>
    </dependencies>
  </dependencyManagement>
"""
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
JAVA = ("java", "javac", "mvn")
TOOLS = {
    "java": "default-jdk-headless",
    "javac": "default-jdk-headless",
    "mvn": "maven",
    "nginx": "nginx-light",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "go": "golang-go",
    "kcat": "kcat",
    "node": "nodejs",
    "npm": "npm",
}


class MissingServerError(Exception):
    """A server cannot be had, and the message says in one sentence what is missing."""


def cache() -> Path:
    """Return the folder that outlives a test run."""
    return Path("~/.cache/dragoman-tests").expanduser()


def program(name: str) -> str | None:
    """Return where one of TOOLS is; some stand where a user's PATH does not look."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/go/bin")


def require(*tools: str) -> None:
    """Raise MissingServerError unless these programs are installed."""
    missing = [tool for tool in tools if program(tool) is None]
    if missing:
        packages = " ".join(sorted({TOOLS[tool] for tool in missing}))
        raise MissingServerError(
            f"The tests start real servers and cannot find {', '.join(missing)}: "
            f"install what is missing, on Debian with apt-get install {packages}"
        )


def classpath(name: str) -> str:
    """Return the class path of one of PINS, fetched if need be; raises MissingServerError."""
    require(*JAVA)
    pom = _pom(name)
    folder = cache() / f"{name}-{hashlib.sha256(pom.encode()).hexdigest()[:16]}"
    if not folder.is_dir():
        with locked(cache() / f"{name}.lock"):
            if not folder.is_dir():
                _fetch(name, pom, folder)
    return f"{folder}/*"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other test runs of this user out; they hold it for a fetch, which has a deadline."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _pom(name: str) -> str:
    alone = EXCLUSIONS if name in ALONE else ""
    lines = [DEPENDENCY.format(*pin.split(":"), alone=alone) for pin in PINS[name]]
    managed = MANAGEMENT.format(*MANAGED[name].split(":")) if name in MANAGED else ""
    return POM.format(name=name, managed=managed, dependencies="\n".join(lines))


def _fetch(name: str, pom: str, folder: Path) -> None:
    """Have Maven copy the jars into another folder, which is renamed when they are all there."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder.parent) as scratch:
        (Path(scratch) / "pom.xml").write_text(pom, "utf-8")
        jars = Path(scratch) / "jars"
        command = ["mvn", "-B", "-q", f"{PLUGIN}:copy-dependencies", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(
                [*command, f"-DoutputDirectory={jars}"],
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=FETCH_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise MissingServerError(
                f"Maven did not fetch {', '.join(PINS[name])} within {FETCH_SECONDS:.0f} s"
            ) from None
        if done.returncode != 0:
            said = (done.stdout + done.stderr).decode(errors="replace").strip()
            reason = said.splitlines()[0] if said else f"exit status {done.returncode}"
            raise MissingServerError(f"Maven cannot fetch {', '.join(PINS[name])}: {reason}")
        jars.rename(folder)


def main() -> None:
    """Fetch everything; one sentence and status 1 when something cannot be had."""
    try:
        require(*TOOLS)
        for name in PINS:
            classpath(name)
    except MissingServerError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
