"""`router pipeline`: declared data pipelines on Spark, checked, run and looked at.

Spark and what else the extra brings are imported by what needs them, never by help or lists.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from router import log
from router.cli import output
from router.cli.options import as_json, examples, store
from router.errors import SettingError
from router.errors.quoting import nearest
from router.settings import Settings, config_file, load

if TYPE_CHECKING:
    from router.pipelines.declaration import Pipeline
    from router.pipelines.testing.comparing import CaseResult

FOLDER: Final = "config/pipelines"
MAX_LINE_CHARACTERS: Final = 200

folder = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=FOLDER,
    show_default=True,
    help="Folder of the declarations.",
)


@click.group(
    epilog=examples(
        "router pipeline list",
        "router pipeline new orders-table",
        "router pipeline new keep --from archive",
        "router pipeline run orders-table",
    )
)
def command() -> None:
    """Run declared data pipelines on Spark: topics in, SQL between, topics and tables out."""


@command.command("list", epilog=examples("router pipeline list"))
@as_json
@folder
def list_(folder: Path, as_json: bool) -> None:
    """Print the pipelines of the folder, and the shipped ones to begin with."""
    from router.pipelines.finding import found  # noqa: PLC0415 - only when it is used

    known = [(one, one.sentence()) for one in found(folder)]
    document, lines = [], []
    width = max((len(one.name) for one, _ in known), default=0)
    for one, note in known:
        document.append(
            {"name": one.name, "shipped": one.shipped, "file": str(one.file), "says": note}
        )
        origin = "shipped" if one.shipped else str(one.file.parent)
        lines.append(f"{one.name:<{width}}  {origin:<{len(str(folder))}}  {note}")
    output.respond(as_json, document, *lines)


@command.command(
    epilog=examples(
        "router pipeline new orders-table              a commented declaration to change",
        "router pipeline new keep --from archive       a copy of a shipped one",
    )
)
@click.argument("name")
@click.option("--from", "template", default="", metavar="SHIPPED", help="Begin with this one.")
@as_json
@folder
def new(name: str, template: str, as_json: bool, folder: Path) -> None:
    """Write a commented declaration to change."""
    from router.pipelines.finding import write_new  # noqa: PLC0415 - only when it is used

    path = write_new(name, template, folder)
    output.respond(as_json, {"name": name, "says": str(path)}, str(path))


@command.command(
    "check",
    epilog=examples(
        "router pipeline check orders-table",
        "router pipeline check orders-table --offline     without asking for its topics",
        "router pipeline check orders-table --deep        by Spark itself, on no messages",
    ),
)
@click.argument("name")
@click.option("--offline", is_flag=True, help="Do not ask whether the topics are there.")
@click.option("--deep", is_flag=True, help="Start Spark, and have it analyse the streams.")
@as_json
@folder
@store
def check_(name: str, folder: Path, offline: bool, deep: bool, as_json: bool, **given: Any) -> None:
    """Say what is wrong with a pipeline, with the line.

    Spark is started with --deep only: it knows types, arguments and tables, and takes seconds.
    """
    from router.pipelines.finding import named  # noqa: PLC0415 - only when it is used
    from router.pipelines.run import check  # noqa: PLC0415 - only when it is used

    pipeline = named(name, folder)
    check(pipeline, _settings(pipeline, given.pop("config"), given), topics=not offline)
    if deep:
        from router.pipelines.session import needed  # noqa: PLC0415 - as above
        from router.pipelines.testing.analysis import analyse  # noqa: PLC0415 - as above
        from router.pipelines.testing.running import start  # noqa: PLC0415 - as above

        analyse(start(pipeline, needed(pipeline, "embedded:")), pipeline)
    document = {"name": name, "file": str(pipeline.origin.file), "in_order": True}
    output.respond(as_json, document, f"{pipeline.origin.file}: in order")


@command.command(
    "run",
    epilog=examples(
        "router pipeline run orders-table                       until Ctrl-C",
        "router pipeline run orders-table --once                what is there now, then end",
        "router pipeline run orders-table --metrics 0.0.0.0:9404",
        "spark-submit run.py pipeline run orders-table          see docs/pipelines.md",
    ),
)
@click.argument("name")
@click.option("--once", is_flag=True, help="End when all that is there now is done.")
@click.option("--metrics", default="", metavar="HOST:PORT", help="Serve Prometheus there.")
@click.option(
    "--progress/--no-progress", default=None, help="Show progress.  [default: on a terminal]"
)
@folder
@store
def run_(name: str, folder: Path, config: Path | None, **given: Any) -> None:
    """Run a pipeline until it is told to stop, or is done.

    SIGTERM and Ctrl-C let the batch under way end first; a second one does not. The exit status is
    0 after a clean end, 1 after a failure or a job that found something wrong, 78 for a pipeline
    that cannot run as it is declared.
    """
    from router.pipelines.finding import named  # noqa: PLC0415 - only when it is used

    _run(named(name, folder), config, given)


@command.command(
    epilog=examples(
        "router pipeline replay pipelines/tables/archive --to orders.again --rate 500",
        "router pipeline replay pipelines/tables/archive --from 2026-07-31T00:00:00Z",
    )
)
@click.argument("archive")
@click.option("--to", default="{topic}", show_default=True, help="Topic to publish to.")
@click.option("--topic", "topics", multiple=True, help="Only what came from it; repeatable.")
@click.option("--from", "since", default="", metavar="TIME", help="Published then or later.")
@click.option("--until", default="", metavar="TIME", help="Published before.")
@click.option(
    "--rate",
    type=click.FloatRange(0.001, 1e9),
    default=1000.0,
    show_default=True,
    help="Messages a second.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["delta", "parquet"]),
    default="delta",
    show_default=True,
    help="The format of the table.",
)
@click.option("--name", default="replay", show_default=True, help="Name of this replay.")
@store
def replay(archive: str, name: str, config: Path | None, **given: Any) -> None:
    """Publish what the pipeline `archive` kept, byte for byte and marked, at a bounded rate.

    A replay that was interrupted goes on where it was when it is started again with the same name.
    """
    from router.pipelines.derived import replay_of  # noqa: PLC0415 - only when it is used
    from router.pipelines.jobs.options import span_ms  # noqa: PLC0415 - as above

    span_ms("from", given["since"], "until", given["until"])
    own = {key: given.pop(key) for key in ("to", "topics", "until", "rate")}
    own |= {"from": given.pop("since"), "format": given.pop("form")}
    _run(replay_of(name, archive, own), config, given)


@command.command(
    epilog=examples(
        "router pipeline maintain orders-table",
        "router pipeline maintain orders-table --where \"date >= '2026-07-01'\" --retain-hours 48",
    )
)
@click.argument("name")
@click.option("--where", default="", help="Delta: compact these partitions only; a condition.")
@click.option(
    "--target-mb",
    type=click.FloatRange(1, 1e9),
    default=128.0,
    show_default=True,
    help="Size of files.",
)
@click.option(
    "--retain-hours",
    type=click.FloatRange(1, 1e9),
    default=168.0,
    show_default=True,
    help="Age of deleted files.",
)
@folder
@store
def maintain(name: str, folder: Path, config: Path | None, **given: Any) -> None:
    """Compact the tables that a pipeline writes, and delete files that they do not name any more.

    The pipeline may run meanwhile. Parquet folders are not compacted; a database does it by itself.
    """
    from router.pipelines.derived import maintain_of  # noqa: PLC0415 - only when it is used
    from router.pipelines.finding import named  # noqa: PLC0415 - only when it is used

    own = {key: given.pop(key) for key in ("where", "target_mb", "retain_hours")}
    _run(maintain_of(named(name, folder), own), config, given)


@command.command(
    epilog=examples(
        "router pipeline rebuild orders-table",
        "router pipeline rebuild orders-table --from 2026-07-01 --to 2026-08-01",
        "router pipeline rebuild orders-table --swap        takes its rows into the table",
        'router pipeline rebuild orders-table --from 2026-07-01 --swap --where "date >= ..."',
    )
)
@click.argument("name")
@click.option("--sink", default="", help="The Delta table, where the pipeline writes several.")
@click.option("--from", "since", default="", metavar="TIME", help="Published then or later.")
@click.option("--to", "until", default="", metavar="TIME", help="Published before.")
@click.option("--swap", is_flag=True, help="Take the rebuilt rows into the table.")
@click.option("--where", default="", help="With --swap: the rows to replace.  [default: all]")
@folder
@store
def rebuild(name: str, folder: Path, config: Path | None, **given: Any) -> None:
    """Write a Delta table of a pipeline again, beside it, and swap it in when it is right.

    Without --swap messages are read again into PATH.rebuild-…; the pipeline may run meanwhile. With
    it, and the same --from and --to, rows of the table become those, in one commit.
    """
    from router.pipelines.derived import rebuild_of, swap_of  # noqa: PLC0415 - only when it is used
    from router.pipelines.finding import named  # noqa: PLC0415 - only when it is used
    from router.pipelines.jobs.options import span_ms  # noqa: PLC0415 - as above
    from router.pipelines.run import check_complete  # noqa: PLC0415 - as above

    sink, since, until = (given.pop(key) for key in ("sink", "since", "until"))
    swap, where = given.pop("swap"), given.pop("where")
    pipeline = named(name, folder)
    span = span_ms("from", since, "to", until)
    rebuilt = rebuild_of(pipeline, sink, *span)
    if swap:
        check_complete(rebuilt, _settings(rebuilt, config, given))
    elif where:
        raise SettingError("--where is for --swap: choose what is read again by --from and --to")
    _run(swap_of(pipeline, sink, span, where) if swap else rebuilt, config, {**given, "once": True})


@command.command(
    epilog=examples("router pipeline status orders-table", "router pipeline status replay")
)
@click.argument("name")
@as_json
@folder
@store
def status(name: str, folder: Path, as_json: bool, config: Path | None, **given: Any) -> None:
    """Print how far the present run of a pipeline is, or the last one was.

    Exit status 1: it never ran, or it failed.
    """
    from router.pipelines.progress import status_lines  # noqa: PLC0415 - only when it is used
    from router.pipelines.run import state_folder  # noqa: PLC0415 - only when it is used

    pipeline = _known(name, folder)
    lines, well = status_lines(name, state_folder(pipeline, _settings(pipeline, config, given)))
    output.respond(as_json, {"name": name, "well": well, "says": list(lines)}, *lines)
    raise SystemExit(0 if well else 1)


@command.command(
    epilog=examples(
        "router pipeline install             once for each user of a machine",
        "spark-submit --jars $(router pipeline install --jars) ...",
    )
)
@click.option("--jars", is_flag=True, help="Print their paths with commas, as Spark takes them.")
@as_json
def install(jars: bool, as_json: bool) -> None:
    """Fetch Spark's connectors (Kafka, Delta, PostgreSQL) from Maven Central, checked by hash.

    Spark's classes are archived as well, which takes most of a minute, and a third off each later
    start on this machine.
    """
    from router.pipelines import connectors, session  # noqa: PLC0415 - only when it is used

    # What is printed on request goes to standard output; what is done meanwhile does not.
    notify = partial(click.echo, err=True)
    found = connectors.install(notify)
    paths = connectors.jars(connectors.CONNECTORS)
    if not jars and not session.install(notify):
        click.echo("Spark's classes cannot be archived here: its starts will be slower.", err=True)
    line = ",".join(map(str, paths)) if jars else f"{found}: {len(paths)} jars, in order"
    output.respond(as_json, {"folder": str(found), "jars": [*map(str, paths)]}, line)


@command.command(
    "test",
    epilog=examples(
        "router pipeline test                             all of config/pipelines/tests",
        "router pipeline test orders --junit report.xml   config/pipelines/tests/orders.toml",
        "router pipeline test other/folder/orders.toml --update",
        "router pipeline test orders --from-topic orders --limit 20",
    ),
)
@click.argument("names", nargs=-1)
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write a report.")
@click.option("--update", is_flag=True, help="Write what comes as what is expected.")
@click.option("--from-topic", "topic", metavar="TOPIC", help="Add a case of a topic's messages.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="So many."
)
@as_json
@folder
@store
def test_(
    names: tuple[str, ...],
    junit: Path | None,
    folder: Path,
    config: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Test pipelines with sample messages and the rows that they should give, without a router.

    NAMES are those of pipelines, or files of tests that end with .toml. The exit status is 0 if all
    cases pass, 1 if one does not, 78 for a test that cannot run.
    """
    from router.pipelines.testing import reporting, writing  # noqa: PLC0415 - as above
    from router.pipelines.testing.cases import load as load_tests  # noqa: PLC0415 - as above
    from router.pipelines.testing.running import results, start  # noqa: PLC0415 - as above

    update, topic, limit = (given.pop(key) for key in ("update", "topic", "limit"))
    tests = folder / "tests"
    chosen = [Path(name) if name.endswith(".toml") else tests / f"{name}.toml" for name in names]
    chosen = chosen or sorted(tests.glob("*.toml"))
    if not chosen:
        raise SettingError(f"there is no test in {tests}, and none is named")
    if topic is not None:
        if len(chosen) != 1:
            raise SettingError("--from-topic adds a case to one file: name it")
        pipeline = load_tests(chosen[0], folder, complete=False).pipeline
        _add_case(chosen[0], pipeline, topic, limit, _settings(pipeline, config, given))
    done: dict[Path, list[CaseResult]] = {}
    for file in chosen:
        test = load_tests(file, folder, complete=not update and topic is None)
        added = len(test.cases) - 1 if topic is not None else None
        done[file] = []
        for number, came in enumerate(results(start(test.pipeline), test)):
            accepted = update or number == added
            if accepted:
                writing.update(file, number, came)
            done[file].append(came.accepted() if accepted else came)
            if not as_json:
                click.echo("\n".join(reporting.lines(done[file][-1])))
    if junit is not None:
        reporting.write_junit(junit, done)
    document = [
        {"file": str(file), "case": one.case.name, "failures": one.failures()}
        for file, cases in done.items()
        for one in cases
    ]
    failed = sum(bool(one["failures"]) for one in document)
    output.respond(as_json, document, f"{len(document)} cases, {failed} failed")
    raise SystemExit(1 if failed else 0)


def _add_case(file: Path, pipeline: Pipeline, topic: str, limit: int, settings: Settings) -> None:
    """Add a case with a topic's first messages to a file of tests."""
    from router.backends.opening import opened  # noqa: PLC0415 - only when it is used
    from router.pipelines.run import placed  # noqa: PLC0415 - only when it is used
    from router.pipelines.testing import writing  # noqa: PLC0415 - only when it is used
    from router.pipelines.testing.running import start  # noqa: PLC0415 - only when it is used

    sources = pipeline.sources().values()
    known = [name for source in sources for name in source.topics]
    if topic not in known and not any(source.pattern for source in sources):
        raise SettingError(f"{pipeline.name} reads no topic {topic!r}{nearest(topic, known)}")
    pipeline = placed(pipeline, settings)
    with opened(settings) as (_, backend):
        # Before Spark starts: TopicNotFoundError if there is none.
        backend.partitions(settings.topic(topic), settings.seconds("backend.timeout"))
        messages = writing.sample(start(pipeline), pipeline, topic, limit)
    writing.add_case(file, f"from {topic}: {len(messages)} messages", messages)


def _known(name: str, folder: Path) -> Pipeline:
    """Return a declared pipeline; a name without a declaration may be a replay's."""
    from router.pipelines.derived import replay_of  # noqa: PLC0415 - only when it is used
    from router.pipelines.finding import found, named  # noqa: PLC0415 - only when it is used

    own = (one.name for one in found(folder) if not one.shipped or one.name != "replay")
    return named(name, folder) if name.endswith(".toml") or name in own else replay_of(name, "", {})


def _run(pipeline: Pipeline, config: Path | None, given: dict[str, Any]) -> None:
    from router.pipelines.run import RunOptions, once, run  # noqa: PLC0415 - only when it is used

    own = {key: given.pop(key, None) for key in ("once", "metrics", "progress")}
    settings = _settings(pipeline, config, given)
    log.begin("pipeline", settings.text("log.level"), settings.text("log.format"))
    shown = sys.stderr.isatty() if own["progress"] is None else own["progress"]
    options = RunOptions(own["metrics"] or "", _shower() if shown else None, click.echo)
    well = run(once(pipeline) if own["once"] else pipeline, settings, options)
    raise SystemExit(0 if well else 1)


def _shower() -> Callable[[str], None]:
    """Return what draws a line over the last one; where there is no terminal, below it."""
    if not sys.stderr.isatty():
        return lambda line: click.echo(line, err=True)
    return lambda line: click.echo(f"\r\x1b[2K{line[:MAX_LINE_CHARACTERS]}", nl=False, err=True)


def _settings(pipeline: Pipeline, config: Path | None, given: dict[str, Any]) -> Settings:
    """Return the settings in force: a flag goes before the declaration, that before the file."""
    flags = {name.replace("__", "."): text for name, text in given.items() if text is not None}
    declared = dict(pipeline.source.settings)
    if pipeline.source.url:
        declared["backend.url"] = pipeline.source.url
    return load(config_file(os.environ, config), os.environ, declared | flags)
