"""The Spark session of a run: what it needs to start, said in one sentence where it is missing.

A run started with `python` or `router` starts Spark in processes of its own. One that
`spark-submit` starts is inside of a cluster's application already: master, memory and jars are what
spark-submit was told, and only what a pipeline cannot do without is set beside it.

A local Spark gets a home whose Python processes import the installed pyspark, which is compiled.
Spark puts `$SPARK_HOME/python/lib/pyspark.zip` first on the path of each Python process that it
starts, and what is imported from there is compiled again by each: 1.3 s of processor time, for
several processes of every query. A home that has Spark's programs and jars, but not that zip,
leaves them the package that this process has as well. On a cluster the zip is what brings pyspark
to machines that have none, and nothing is changed.

Spark's classes are in an archive that a JVM maps when it starts, instead of reading jars. Most of a
local run's first twenty seconds is thousands of classes that are found, checked and linked; mapped
from an archive of them (class data sharing) it starts in two thirds of the time. The archive is
good for one JVM and one set of jars: its name has both, and a JVM that finds it unfit goes on
without it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Collection, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from router.errors import SettingError
from router.pipelines import jobs
from router.pipelines.connectors import Notify, cache, jars, run_followed
from router.pipelines.declaration import KINDS, Pipeline, is_local
from router.pipelines.failures import sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_FROM: Final = 17
JAVA_SECONDS: Final = 30.0
EXTRA: Final = (
    "install dragoman with its extra `pipelines`, in a checkout pip install '.[pipelines]'"
)
MODULES: Final = ("pyspark", "pyarrow", "pandas")
# What a declaration is checked with, also where it will never run.
READERS: Final = ("sqlglot", "jsonschema")
# What the promises of a pipeline rest on: resources may not change it.
FIXED: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    # Otherwise what a query does not ask for decides whether a record is good.
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
    "spark.sql.optimizer.enableCsvExpressionOptimization": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    # An object that names a field twice is JSON; a dead letter that was one before says so again.
    "spark.sql.variant.allowDuplicateKeys": "true",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
}
_DELTA: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_LOCAL: Final = {
    # All cores, and three more tries of a task: a Python worker of a busy machine may start late.
    "spark.master": "local[*, 4]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # One machine needs no fifty tasks to read the log of a table, which Delta does at each batch.
    "spark.databricks.delta.snapshotPartitions": "4",
    "spark.sql.streaming.stopTimeout": "60s",
    # Python workers of a busy machine take more than the usual 15 s to start.
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
# Spark's own choice starts a dozen processes, `readlink` and `chmod`, for each batch: most of what
# a small batch takes. Both rename a file that is complete; on HDFS this one keeps an old file of
# the same name, such as the state that a batch which failed has written.
_LOCAL_CHECKPOINT: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    )
}
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOGS: Final = (
    f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
)
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
# Settings that Spark itself takes for secrets, by their names.
_SECRET: Final = re.compile(r"secret|password|passwd|token|credential|access[.]?key", re.IGNORECASE)
_PARTS: Final = ("bin", "jars")
MAKE_SECONDS: Final = 300.0
# Whatever is wrong with an archive makes a start slower, and is nothing that a user has to know.
_QUIET: Final = "-Xlog:cds*=off -Xlog:class+path=off"


def require(environ: Mapping[str, str] = os.environ) -> str:
    """Raise SettingError with one sentence unless Spark can be started here.

    Returns what Java says of itself, nothing where spark-submit has started it.
    """
    require_modules(MODULES)
    return "" if submitted(environ) else require_java(environ)


def require_modules(names: Collection[str]) -> None:
    """Raise SettingError with one sentence for a module of the extra that is missing."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise SettingError(f"{name} is missing, which pipelines need: {EXTRA}")


def require_java(environ: Mapping[str, str]) -> str:
    """Return what Java says of itself; raise SettingError unless Spark runs on it."""
    advice = (
        f"install a JDK {JAVA_FROM} or later, on Debian with apt-get install default-jdk-headless"
    )
    home = environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else environ.get("PATH"))
    if found is None:
        where = f"below JAVA_HOME, {home}" if home else "on the PATH"
        raise SettingError(f"Java is missing {where}, which Spark runs on: {advice}")
    try:
        done = subprocess.run(  # noqa: S603 - Java, by its full path
            [found, "-version"], capture_output=True, timeout=JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingError(f"{found} does not run: {error}") from error
    version = re.search(rb'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if version is None or int(version[1]) < JAVA_FROM:
        number = version[1].decode() if version else "an unknown one"
        raise SettingError(f"{found} is Java {number}, too old for Spark: {advice}")
    return (done.stderr + done.stdout).decode(errors="replace")


def submitted(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether `spark-submit` started this process."""
    return _GATEWAY in environ


def needed(pipeline: Pipeline, url: str) -> list[str]:
    """Return the connectors that a pipeline needs."""
    found = {name for sink in pipeline.sinks for name in KINDS[sink.kind].connectors}
    if any(table.format == "delta" for table in pipeline.tables):
        found.add("delta")
    named = pipeline.job is not None and "delta" in pipeline.job.options.values()
    once = pipeline.job is not None and not jobs.streams(pipeline.job)
    defaults = once and pipeline.job is not None and "format" not in pipeline.job.options
    if url.startswith("kafka:"):
        found.add("kafka")
    return sorted(found | {"delta"} if named or defaults else found)


def start(
    name: str,
    resources: Mapping[str, str],
    connectors: Collection[str],
    environ: MutableMapping[str, str] = os.environ,
    checkpoint: str = "",
) -> SparkSession:
    """Return a session, or the one that there is; raise SettingError with one sentence.

    `resources` are Spark's own settings. `environ` is what Spark's processes inherit: Python is the
    one that runs this, and where Spark is local it speaks on loopback only. `checkpoint` is where
    streams have theirs, nothing: on this machine.
    """
    version = require(environ)
    inside = submitted(environ)
    local = _LOCAL | (_LOCAL_CHECKPOINT if is_local(checkpoint) else {})
    conf = dict(resources) if inside else {**local, **resources}
    if not inside:
        environ.setdefault("PYSPARK_PYTHON", sys.executable)
        environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if conf["spark.master"].startswith("local"):
            environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            _settle(conf, environ, version)
        else:
            for key in ("spark.driver.bindAddress", "spark.driver.host"):
                if key not in resources:
                    del conf[key]
        _add_jars(conf, jars(connectors))
        conf[JAVA_OPTIONS] = f"{_LOGS} {conf.get(JAVA_OPTIONS, '')}".strip()
    if "delta" in connectors:
        conf |= _DELTA
    return _built(name, {**conf, **FIXED})


def install(notify: Notify) -> bool:
    """Do once what makes later starts faster; return whether it worked. Raises SettingError.

    `say` shows what is done meanwhile.
    """
    version = require()
    try:
        return make_archive(make_home(cache().parent), version, notify)
    except OSError:
        return False


def _settle(conf: dict[str, str], environ: MutableMapping[str, str], version: str) -> None:
    """Have Spark start fast; where that cannot be, all is slower, and nothing else."""
    with suppress(OSError):
        ours = make_home(cache().parent)
        if environ.setdefault("SPARK_HOME", str(ours)) == str(ours):
            given = conf.get(JAVA_OPTIONS, "")
            conf[JAVA_OPTIONS] = f"{archive_options(ours, version)} {given}".strip()


def _add_jars(conf: dict[str, str], paths: list[Path]) -> None:
    """Put the connectors beside the jars that the resources name themselves."""
    given = [conf["spark.jars"]] if conf.get("spark.jars") else []
    if paths or given:
        conf["spark.jars"] = ",".join([*given, *(str(path) for path in paths)])


def _built(name: str, conf: Mapping[str, str]) -> SparkSession:
    with warnings.catch_warnings():
        # Spark imports what newer versions of its own dependencies warn about.
        warnings.simplefilter("ignore")
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra
        from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra
        from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

        plain = [(key, value) for key, value in conf.items() if not _SECRET.search(key)]
        builder = SparkSession.builder.appName(f"router pipeline {name}")
        for key, value in conf.items():
            builder = builder.config(key, value)
        try:
            if len(plain) < len(conf):
                # What the JVM is started with stands on its command line, which all may read; what
                # a session is given later goes over the connection.
                SparkContext._ensure_initialized(conf=SparkConf().setAll(plain))
            session = builder.getOrCreate()
        except PySparkException as error:
            raise SettingError(f"Spark does not start: {sentence(error)}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def make_home(root: Path) -> Path:
    """Return the home below a folder, made if need be; raise OSError where it cannot be made."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None, "the session looked for it"
    assert found.origin is not None, "it is a package"
    package = Path(found.origin).resolve().parent
    place = hashlib.sha256(os.fsencode(package)).hexdigest()[:16]
    home = root / f"spark-{importlib.metadata.version('pyspark')}-{place}"
    home.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        # Others may make the same home at the same time.
        with suppress(FileExistsError):
            (home / part).symlink_to(package / part, target_is_directory=True)
    return home


def archive(home: Path, java: str) -> Path:
    """Return where it is or would be, by the home of Spark and what Java says of itself."""
    jars = sorted((path.name, path.stat().st_mtime_ns) for path in (home / "jars").glob("*.jar"))
    name = hashlib.sha256(f"{java} {jars}".encode()).hexdigest()[:16]
    return home / f"classes-{name}.jsa"


def archive_options(home: Path, java: str) -> str:
    """Return the JVM's options that use the archive, none while there is none."""
    found = archive(home, java)
    return f"{_option('SharedArchiveFile', found)} {_QUIET}" if found.is_file() else ""


def make_archive(home: Path, java: str, notify: Notify) -> bool:
    """Make the archive, which takes most of a minute; return whether it is there now.

    `say` shows what is done meanwhile.
    """
    made = archive(home, java)
    if made.is_file():
        return True
    notify(f"Archiving Spark's classes, about a minute, into {made}")
    part = made.with_suffix(f".{os.getpid()}")
    command = [sys.executable, "-m", "router.pipelines.exercise"]
    # The second compiler pays in the long run only.
    command.append(f"{_option('ArchiveClassesAtExit', part)} -XX:TieredStopAtLevel=1 {_QUIET}")
    try:
        # It ends when the JVM, which has its output too, has written the archive.
        if run_followed(command, "Archiving", notify, MAKE_SECONDS).returncode != 0:
            return False
        part.rename(made)
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        part.unlink(missing_ok=True)
    return made.is_file()


def _option(name: str, path: Path) -> str:
    """Return an option in the quotes of Spark's lists of options: a path may have spaces."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"-XX:{name}={escaped}"'
