"""One run of a pipeline, from its declaration to a clean end.

Theory of operation. Everything that can be said without Spark is said first: SQL, topics, Java, the
extra. Then the lease is taken, Spark starts, each sink becomes a streaming query of its own, and
this thread watches: the queries, the lease, the signals. A first SIGTERM or SIGINT lets the batch
under way end, in each query, before the query is stopped: what it wrote is committed, and the next
run goes on behind it. A second one, or the time of `limits.stop`, stops at once, which loses
nothing either, but repeats a batch. Every other end is a failure with one sentence.

Spark's `query.stop()` alone was not taken for a signal: it interrupts the batch. What is still cut
off is a batch that begins between the last look and the stop; it is taken again by the next run.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from router.backends import Backend
from router.backends.opening import opened
from router.errors import RouterError, SettingError
from router.pipelines import connectors, jobs, session
from router.pipelines.declaration import DEAD_LETTERS, Pipeline, Trigger, is_local
from router.pipelines.failures import sentence
from router.pipelines.lease import Lock, PipelineLease, watched
from router.pipelines.metrics import serve
from router.pipelines.ownership import check_owner, own, own_remote
from router.pipelines.progress import PipelineProgress, write_status
from router.pipelines.queries import Queries, Retries, RunFailedError
from router.services.pipelines import FOLDER, read_status, run_state
from router.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from router.pipelines.sinks import SinkContext
    from router.pipelines.tables import Tables

POLL_SECONDS: Final = 0.5
STATUS_SECONDS: Final = 5.0
LAST_EVENTS_SECONDS: Final = 10.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run shows itself: `metrics` is HOST:PORT, empty: none. `show` takes lines of progress.

    `say` takes the findings of jobs that run once.
    """

    metrics: str = ""
    show: Callable[[str], None] | None = None
    notify: Callable[[str], None] = lambda _line: None
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    clock: Callable[[], float] = time.monotonic


def once(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline that ends when all that is there now is done."""
    return replace(pipeline, trigger=Trigger(available_now=True))


def state_folder(pipeline: Pipeline, settings: Settings) -> Path:
    """Return the folder of this machine that has a pipeline's lock and status."""
    folder = pipeline.checkpoint.removeprefix("file://")
    if folder and is_local(pipeline.checkpoint):
        return Path(folder)
    return Path(settings.text("data.dir")) / FOLDER / pipeline.name


def placed(pipeline: Pipeline, settings: Settings) -> Pipeline:
    """Return a pipeline whose checkpoint and store are named in full, by the settings in force."""
    folder = pipeline.checkpoint
    if is_local(folder):
        folder = str(state_folder(pipeline, settings).absolute())
    given = {
        name: value.text for name, value in settings.values.items() if value.origin != "default"
    }
    given["data.dir"] = str(Path(settings.text("data.dir")).absolute())
    given.pop("backend.url", None)
    source = replace(pipeline.source, url=settings.text("backend.url"), settings=given)
    streams = {
        name: replace(one, url=source.url, settings=given) for name, one in pipeline.streams.items()
    }
    sinks = tuple(replace(sink, path=_absolute(sink.path)) for sink in pipeline.sinks)
    tables = tuple(replace(table, path=_absolute(table.path)) for table in pipeline.tables)
    return replace(
        pipeline, checkpoint=folder, source=source, streams=streams, sinks=sinks, tables=tables
    )


def check(pipeline: Pipeline, settings: Settings, *, topics: bool = True) -> None:
    """Raise DeclarationError for all that can be known without Spark.

    With `topics` the store is asked for those of the source.
    """
    check_declared(pipeline)
    check_owner(placed(pipeline, settings))
    from router.pipelines.checks import check_topics  # noqa: PLC0415 - needs an extra

    if topics and (pipeline.source.topics or pipeline.source.pattern):
        with opened(settings) as (_, backend):
            check_topics(pipeline, backend, settings)


def check_complete(pipeline: Pipeline, settings: Settings) -> None:
    """Raise SettingError if the last run of a pipeline on this machine did not come to its end."""
    status = read_status(state_folder(pipeline, settings))
    if status is not None and not status.get("complete"):
        state = run_state(status, state_folder(pipeline, settings))
        raise SettingError(
            f"{pipeline.name} is not at its end ({state}), and its rows are not all there: run the"
            " same command without --swap"
        )


def check_declared(pipeline: Pipeline) -> None:
    """Raise DeclarationError for what the declaration alone says wrong.

    Raises SettingError where the extra that reads SQL and schemas is missing.
    """
    session.require_modules(session.READERS)
    from router.pipelines.checks import check_folders, check_sql  # noqa: PLC0415 - needs an extra

    for key, value in session.FIXED.items():
        if pipeline.resources.get(key, value) != value:
            raise pipeline.origin.error(("resources", key), f"{key} is {value} in each pipeline")
    check_folders(pipeline)
    if pipeline.job is not None:
        try:
            jobs.check(pipeline.job, pipeline.origin.file.parent, pipeline.checkpoint)
        except ValueError as error:
            raise pipeline.origin.error(("job",), str(error)) from error
        if not jobs.streams(pipeline.job):
            return
    check_sql(pipeline)


def run(pipeline: Pipeline, settings: Settings, options: RunOptions) -> bool:
    """Run a pipeline until it is done, told to stop, or fails; return whether all is well.

    Raises RunningError while another run has it, SettingError for what cannot run at all, and
    RunFailedError. Call it in the main thread: it takes SIGTERM and SIGINT.
    """
    check_declared(pipeline)
    session.require()
    from router.pipelines.checks import check_topics  # noqa: PLC0415 - needs an extra

    pipeline = placed(pipeline, settings)
    connector_names = session.needed(pipeline, pipeline.source.url)
    if not session.submitted():
        connectors.jars(connector_names)
    with ExitStack() as parts, _signals() as stop:
        node, backend = parts.enter_context(opened(settings))
        check_topics(pipeline, backend, settings)
        lock = Lock(state_folder(pipeline, settings), pipeline.name)
        parts.callback(lock.release)
        lock.acquire()
        if is_local(pipeline.checkpoint):
            own(pipeline, state_folder(pipeline, settings))
        lease = PipelineLease(
            node, pipeline.name, settings.seconds("backend.timeout"), options.clock
        )
        parts.callback(lease.release)
        lease.acquire()
        one = PipelineRun(pipeline, settings, options, backend, lease, stop)
        parts.enter_context(one.recorded())
        _log.info("pipeline.starting", pipeline=pipeline.name, checkpoint=pipeline.checkpoint)
        # Every call to the JVM is a line otherwise.
        logging.getLogger("py4j").setLevel(logging.WARNING)
        spark = session.start(
            pipeline.name, pipeline.resources, connector_names, checkpoint=pipeline.checkpoint
        )
        parts.callback(_end_session, spark)
        # Spark takes SIGINT for itself when it starts.
        stop.install()
        if not is_local(pipeline.checkpoint):
            own_remote(pipeline, spark)
        if pipeline.job is not None and not jobs.streams(pipeline.job):
            return one.once(spark)
        one.stream(spark)
        return True


class Stop:
    """What the signals say: `event` after the first, `at_once` after the second."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.at_once = threading.Event()

    def install(self) -> None:
        """Take the signals."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def _signalled(self, _number: int, _frame: object) -> None:
        if self.event.is_set():
            self.at_once.set()
        self.event.set()


@contextmanager
def _signals() -> Iterator[Stop]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stop = Stop()
    stop.install()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class PipelineRun:
    """The parts of one run, and its result."""

    pipeline: Pipeline
    settings: Settings
    options: RunOptions
    backend: Backend
    lease: PipelineLease
    stop: Stop
    reasons: dict[str, str] = field(default_factory=dict)
    progress: PipelineProgress = field(init=False)
    started: str = field(init=False)
    complete: bool = False
    _written: float = 0.0

    def __post_init__(self) -> None:
        self.progress = PipelineProgress(
            self.options.clock,
            self.pipeline.sink_names(),
            lambda name: self.settings.shortest_name(self.settings.topic(name)),
        )
        self.started = self.options.wall().isoformat(timespec="seconds")

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Keep the status file, to the end and its reason."""
        self.write("starting")
        try:
            yield
        except BaseException as error:
            self.write("failed", str(error) or type(error).__name__)
            raise
        self.write("stopped")

    def write(self, state: str, error: str = "") -> None:
        """Write the status beside the checkpoint."""
        status = {
            "pipeline": self.pipeline.name,
            "state": state,
            "error": error,
            "complete": self.complete and not error,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started": self.started,
            "updated": self.options.wall().isoformat(timespec="seconds"),
            "dead_letters": self.progress.dead_letters(),
            "sinks": self.progress.sinks(),
        }
        write_status(state_folder(self.pipeline, self.settings), status)
        self._written = self.options.clock()

    def once(self, spark: SparkSession) -> bool:
        """Run a job that is no stream."""
        self.write("running")
        context = jobs.JobContext(
            pipeline=self.pipeline,
            spark=spark,
            backend=self.backend,
            settings=self.settings,
            stop=self.stop.event,
            notify=self.options.notify,
            clock=self.options.clock,
            wall_ms=self._now_ms,
        )
        with watched(self.lease, self.stop.event), _spark_failures():
            return self._retries().call(partial(jobs.run, context))

    def stream(self, spark: SparkSession) -> None:
        """Start a query for each sink, and watch them to their end."""
        from router.pipelines.earlier_dead_letters import without_earlier  # noqa: PLC0415 - an extra
        from router.pipelines.graph import flows  # noqa: PLC0415 - needs an extra
        from router.pipelines.listening import listen  # noqa: PLC0415 - needs an extra
        from router.pipelines.schemas import resolved, together  # noqa: PLC0415 - needs an extra
        from router.pipelines.sinks import start_sink, tidy_sink  # noqa: PLC0415 - see above
        from router.pipelines.source import frame  # noqa: PLC0415 - see above
        from router.pipelines.tables import Tables  # noqa: PLC0415 - see above

        folder = state_folder(self.pipeline, self.settings)
        with ExitStack() as parts, _spark_failures():
            retries = self._retries()
            sources = retries.call(
                partial(resolved, spark, self.pipeline, folder, self.backend, self.settings)
            )
            sources = together(self.pipeline, sources, folder, self._now_ms())
            tables = retries.call(partial(Tables, spark, self.pipeline.tables, self.options.clock))
            if self.options.metrics:
                parts.callback(serve(self.options.metrics, self.pipeline.name, self.progress))
            parts.enter_context(listen(spark, self.progress, self.pipeline.name))
            context = self._context()
            queries = Queries(self.progress, retries, tables.reread)
            parts.callback(queries.stop_all)
            started = []
            read = partial(frame, spark, streaming=True)
            for flow in retries.call(lambda: list(flows(self.pipeline, sources, read))):
                if self.stop.event.is_set():
                    break
                rows = flow.rows
                if flow.sink.name == DEAD_LETTERS:
                    parted = partial(without_earlier, rows, self.pipeline)
                    rows = retries.call(partial(parted, self.backend, self.settings))
                queries.start(flow.sink.name, partial(start_sink, rows, flow.sink, context))
                started.append(flow.sink)
            _log.info("pipeline.started", pipeline=self.pipeline.name, sinks=queries.names())
            complete = self._watch(queries, tables)
            self._end(queries)
            self._check_bad()
            self.complete = complete
            for sink in started:
                tidy_sink(sink, context)
        _log.info("pipeline.stopped", pipeline=self.pipeline.name)

    def _retries(self) -> Retries:
        retry_seconds = self.pipeline.limits.start_seconds
        return Retries(retry_seconds, self.stop.event.wait, self.options.clock)

    def _now_ms(self) -> int:
        return int(self.options.wall().timestamp() * 1000)

    def _context(self) -> SinkContext:
        from router.pipelines.checks import reader  # noqa: PLC0415 - needs an extra
        from router.pipelines.sinks import SinkContext  # noqa: PLC0415 - needs an extra

        def failed(sink: str, error: RouterError) -> None:
            self.reasons[sink] = str(error)

        return SinkContext(
            pipeline=self.pipeline.name,
            checkpoint=self.pipeline.checkpoint,
            backend=self.backend,
            settings=self.settings,
            trigger=self.pipeline.trigger,
            failed=failed,
            reads=reader(self.pipeline, self.settings),
        )

    def _watch(self, queries: Queries, tables: Tables) -> bool:
        """Return when all queries are done, or False when a signal came; raise RunFailedError."""
        while not self.stop.event.wait(POLL_SECONDS):
            queries.check(self.reasons)
            self.lease.check()
            tables.refresh()
            self._check_bad()
            self._show()
            if not queries.running():
                queries.check(self.reasons)  # one may have failed since
                if queries.running():
                    continue
                if self.pipeline.trigger.available_now:
                    return True
                raise RunFailedError("all queries ended, and none says why")
        return False

    def _check_bad(self) -> None:
        share = self.pipeline.limits.bad_share
        for name, sink in self.progress.sinks().items():
            if sink["worst_bad"] > share * sink["worst_rows"]:
                raise RunFailedError(
                    f"sink {name}: {sink['worst_bad']} of {sink['worst_rows']} records of a batch"
                    f" are bad, over limits.bad_share = {share:g}"
                )

    def _show(self) -> None:
        if self.options.show is not None:
            self.options.show(self.progress.line())
        if self.options.clock() - self._written >= STATUS_SECONDS:
            self.write("running")

    def _end(self, queries: Queries) -> None:
        """Let the batches under way end, and stop each query; raise RunFailedError."""
        until = self.options.clock() + self.pipeline.limits.stop_seconds
        before = {name: self.progress.batches(name) for name in queries.names()}
        waiting = set(before)
        while waiting:
            late = self.stop.at_once.is_set() or self.options.clock() >= until
            for name in sorted(waiting):
                if late or queries.between(name, before[name]):
                    queries.stop(name)
                    waiting.remove(name)
            if waiting:
                self.stop.at_once.wait(0.05)
        queries.check(self.reasons)
        # The last batches' counts come in another thread.
        if not self.progress.wait_for_end(queries.runs(), LAST_EVENTS_SECONDS):
            _log.warning("pipeline.uncounted", pipeline=self.pipeline.name)


@contextmanager
def _spark_failures() -> Iterator[None]:
    """Turn what Spark raises into one sentence."""
    from py4j.protocol import Py4JError, Py4JNetworkError  # noqa: PLC0415 - an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    try:
        yield
    except PySparkException as error:
        raise RunFailedError(sentence(error)) from error
    except (Py4JNetworkError, ConnectionError) as error:
        raise RunFailedError("Spark's JVM went away; the next run goes on where it was") from error
    except Py4JError as error:
        raise RunFailedError(f"Spark's JVM failed or went away: {sentence(error)}") from error


def _end_session(spark: SparkSession) -> None:
    """Stop Spark; where its JVM went away there is nothing left to stop."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - an extra

    with suppress(Py4JError, ConnectionError):
        spark.stop()


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path and "://" not in path else path
