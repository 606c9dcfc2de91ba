"""What is said about a pipeline before Spark starts: its SQL, its columns, its topics.

Theory of operation. Each step is parsed in Spark's dialect and its columns are looked up, step by
step, in what the ones before give; where the schema comes with the data, only views are looked up.
The functions that a step calls are looked up among Spark's, and so is what streams cannot have.
This is no second Spark: types of expressions and arguments of functions are left to it, and a
construct whose columns this cannot follow (generators, lateral views) is let pass, for a refusal
must never be wrong. A step with `checked = false` is left to Spark altogether.

Spark could say it all itself, after 15 to 40 s of starting and only where there is a JDK.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import re2
import sqlglot
from sqlglot import exp
from sqlglot.errors import OptimizeError, ParseError, SqlglotError
from sqlglot.optimizer.qualify import qualify

from router.backends import Backend
from router.errors import BadNameError, TopicNotFoundError
from router.errors.quoting import nearest
from router.model import TopicName
from router.pipelines.declaration import (
    DATE,
    KINDS,
    TIMES,
    Pipeline,
    SinkSpec,
    ViewStep,
    is_hidden,
    is_local,
)
from router.pipelines.declared_columns import columns, declared, failed_at, offset
from router.pipelines.reading import DeclarationOrigin, Place
from router.pipelines.schema_grammar import BadColumnsError
from router.pipelines.select_rules import (
    aliases_in_where,
    foreign_cast,
    lonely_comma,
    misplaced,
    unlike_widths,
)
from router.pipelines.stream_rules import refused, unfit_sinks
from router.settings import Settings

Columns = Mapping[str, str] | None
# `window(column, '1 minute')` is a function to Spark and a clause to the parser: it reads another
# name of the same length, so that places stay what they are.
_WINDOW: Final = re.compile(r"\bwindow(?=\s*\()", re.IGNORECASE)
STAND_IN: Final = "windo_"
_WINDOWS: Final = frozenset({"window", "session_window"})
_EXTENSIONS: Final = "spark.sql.extensions"
"""The resource by which a pipeline may bring functions of its own."""
_UNFOLLOWED: Final = (exp.Lateral, exp.UDTF, exp.Explode, exp.Inline, exp.Pivot, exp.Stack)
# Functions of several columns that the parser does not know.
_GENERATORS: Final = frozenset({"inline_outer", "json_tuple"})
_UNKNOWN: Final = re.compile(
    r"Column '?(?P<a>[^']+?)'? could not be resolved|Unknown column: (?P<b>\S+)"
)
FILE: Final = Path(__file__).parent / "functions.txt"
# Parts of Spark's grammar, which SHOW FUNCTIONS leaves out.
_GRAMMAR: Final = frozenset({"identifier", "timestampadd", "timestampdiff", "try_cast"})


def check_sql(pipeline: Pipeline) -> None:
    """Raise DeclarationError for SQL that cannot work, with its place."""
    origin = pipeline.origin
    views: dict[str, Columns] = {}
    for name, source in pipeline.sources().items():
        path = pipeline.source_path(name)
        try:
            views[name.lower()] = columns(source)
        except BadColumnsError as error:
            raise origin.error((*path, "schema"), str(error), error.offset) from error
        _check_watermark(origin, path, source.watermark, views[name.lower()])
    for number, table in enumerate(pipeline.tables):
        try:
            views[table.name.lower()] = declared(table.schema) if table.schema else None
        except BadColumnsError as error:
            path = ("table", number, "schema")
            raise origin.error(path, str(error), error.offset) from error
    parsed = parsed_steps(pipeline)
    later = {step.name.lower() for step in pipeline.steps}
    for step in pipeline.steps:
        query = parsed.get(step.name.lower())
        if query is not None and _EXTENSIONS not in pipeline.resources:
            _check_functions(origin, step, query)
        views[step.name.lower()] = (
            None if query is None else _check_step(origin, step, query, views, later)
        )
        _check_watermark(origin, step.declared, step.watermark, views[step.name.lower()])
    for sink in pipeline.sinks:
        _check_sink(origin, sink, views[sink.from_step.lower()])
    for found in refused(pipeline, parsed):
        raise found.step.error(origin, found.reason, found.offset)
    for sink, key, reason in unfit_sinks(pipeline, parsed):
        raise origin.error((*sink.declared, key), f"sink {sink.name}: {reason}")


def parsed_steps(pipeline: Pipeline) -> dict[str, exp.Query]:
    """Return the SQL of the steps that are checked, by their names in lower case.

    Functions `window` are named STAND_IN there. Raises DeclarationError.
    """
    origin = pipeline.origin
    return {s.name.lower(): _parsed(origin, s) for s in pipeline.steps if s.checked}


def check_folders(pipeline: Pipeline) -> None:
    """Raise DeclarationError for folders that cannot work.

    These are a folder of this machine that cannot be created or written, and a table around the
    checkpoint or another table, whose files `maintain` would delete: its log does not name them.
    """
    origin = pipeline.origin
    _check_around(origin, pipeline)
    folders: list[tuple[Place, str]] = [
        ((*sink.declared, "path"), sink.path) for sink in pipeline.sinks
    ]
    for path, folder in [*folders, (("checkpoint",), pipeline.checkpoint)]:
        if not folder or not is_local(folder):
            continue
        there = Path(folder.removeprefix("file://")).absolute()
        while not there.exists():
            there = there.parent
        if not there.is_dir():
            raise origin.error(path, f"{folder} cannot be a folder: {there} is a file")
        if not os.access(there, os.W_OK | os.X_OK):
            raise origin.error(path, f"{folder} cannot be written: {there} belongs to another user")


def _check_around(origin: DeclarationOrigin, pipeline: Pipeline) -> None:
    tables = [_whole(sink.path) for sink in pipeline.sinks if sink.path]
    for sink in pipeline.sinks:
        table = _whole(sink.path)
        others = [_whole(pipeline.checkpoint), *(one for one in tables if one != table)]
        for other in others if sink.path else ():
            within = f"{other}/".removeprefix(f"{table}/")
            # A log names no files in such folders either, and leaves them alone.
            if within != f"{other}/" and not any(map(is_hidden, within.split("/"))):
                raise origin.error(
                    (*sink.declared, "path"),
                    f"the table {sink.path} is around {other}, whose files maintain would delete:"
                    " give another folder",
                )


def _whole(path: str) -> str:
    """Return a path in full without a slash at its end, nothing for nothing."""
    local = path.removeprefix("file://")
    return os.path.abspath(local) if path and is_local(path) else path.rstrip("/")  # noqa: PTH100 - a text


def check_topics(pipeline: Pipeline, backend: Backend, settings: Settings) -> None:
    """Raise DeclarationError for a topic or table that is not there, or a topic that a sink feeds.

    Raises BackendUnavailableError, BackendTimeoutError if the store does not answer.
    """
    origin = pipeline.origin
    timeout = settings.seconds("backend.timeout")
    for name, source in pipeline.sources().items():
        path = (*pipeline.source_path(name), "topics")
        for topic in source.topics:
            try:
                backend.partitions(settings.topic(topic), timeout)
            except BadNameError as error:
                raise origin.error(path, str(error)) from error
            except TopicNotFoundError as error:
                known = [info.topic.local for info in backend.list_topics(timeout)]
                sentence = f"there is no topic {topic!r}{nearest(topic, known)}"
                raise origin.error(path, sentence) from error
    for number, table in enumerate(pipeline.tables):
        if is_local(table.path) and not Path(table.path.removeprefix("file://")).exists():
            sentence = f"there is no table {table.path}, which {table.name} names"
            raise origin.error(("table", number, "path"), sentence)
    _check_circle(origin, pipeline, settings)


def _check_circle(origin: DeclarationOrigin, pipeline: Pipeline, settings: Settings) -> None:
    """Raise DeclarationError for a topic that is read and written: that never comes to an end."""
    reads = reader(pipeline, settings)
    written: list[tuple[Place, str]] = [
        ((*sink.declared, "topic"), sink.topic) for sink in pipeline.sinks
    ]
    for path, name in [*written, (("dead_letters",), pipeline.dead_letters)]:
        if not name:
            continue
        try:
            topic = settings.topic(name)
        except BadNameError as error:
            raise origin.error(path, str(error)) from error
        if reads(topic):
            raise origin.error(path, f"the topic {name!r} is read by the source: give another one")


def reader(pipeline: Pipeline, settings: Settings) -> Callable[[TopicName], bool]:
    """Return what tells whether a pipeline's source reads a topic, or would if it were there."""
    sources = pipeline.sources().values()
    topics = {settings.topic(topic) for source in sources for topic in source.topics}
    patterns = [re2.compile(source.pattern) for source in sources if source.pattern]

    def reads(topic: TopicName) -> bool:
        short = settings.shortest_name(topic)
        return topic in topics or any(one.fullmatch(short) for one in patterns)

    return reads


def _check_functions(origin: DeclarationOrigin, step: ViewStep, parsed: exp.Query) -> None:
    # A function that the parser knows itself is no Anonymous, whether Spark has it or not.
    for call in parsed.find_all(exp.Anonymous):
        name = str(call.this)
        if name.lower() not in functions() | {STAND_IN}:
            sentence = f"there is no function {name!r}{nearest(name.lower(), functions())}"
            raise step.error(origin, sentence, offset(call))


def _check_step(
    origin: DeclarationOrigin,
    step: ViewStep,
    parsed: exp.Query,
    views: Mapping[str, Columns],
    later: Collection[str],
) -> Columns:
    """Return the columns that a step gives, None: not known; `later` are the steps behind it."""
    inner = {cte.alias.lower() for cte in parsed.find_all(exp.CTE)}
    # A hint such as BROADCAST(r) names aliases, which are no tables.
    tables = [
        t
        for t in parsed.find_all(exp.Table)
        if not t.db and isinstance(t.this, exp.Identifier) and t.find_ancestor(exp.Hint) is None
    ]
    for table in tables:
        if table.name.lower() not in inner | views.keys():
            sentence = f"there is no view {table.name!r}{nearest(table.name, views)}"
            if table.name.lower() in later:
                sentence = f"the step {table.name!r} stands behind it, and may not be read"
            raise step.error(origin, sentence, offset(table))
    schema: dict[str, Columns] = {t.name.lower(): views.get(t.name.lower()) for t in tables}
    if any(schema[name] is None for name in schema.keys() - inner) or _foreign(parsed):
        return None
    known = {name: _lower(found) for name, found in schema.items() if found is not None}
    return _resolved(origin, step, parsed, known)


def _parsed(origin: DeclarationOrigin, step: ViewStep) -> exp.Query:
    text = _WINDOW.sub(STAND_IN, step.sql.rstrip().rstrip(";"))
    try:
        found = sqlglot.parse(text, dialect="spark")
    except ParseError as error:
        at, token, reason = failed_at(text, error)
        near, message = token.replace(STAND_IN, "window"), reason.replace(" / ", ", ")
        raise step.error(origin, f"bad SQL near {near!r}: {message}", at) from error
    except SqlglotError as error:
        description = _flat(error).replace(STAND_IN, "window")
        raise step.error(origin, f"bad SQL: {description}") from error
    if (comma := lonely_comma(text)) is not None:
        raise step.error(origin, f"bad SQL: {comma[1]}", comma[0])
    if (foreign := foreign_cast(text)) is not None:
        raise step.error(origin, foreign[1], foreign[0])
    if len(found) != 1 or not isinstance(found[0], exp.Query):
        raise step.error(origin, "a step is one SELECT")
    return found[0]


def _resolved(
    origin: DeclarationOrigin,
    step: ViewStep,
    parsed: exp.Query,
    known: Mapping[str, Mapping[str, str]],
) -> Columns:
    follow = not (_generates(parsed) or _windowed(parsed))
    names = {column for table in known.values() for column in table}
    for node, sentence in misplaced(parsed, names):
        raise step.error(origin, sentence, offset(node))
    try:
        whole: exp.Query = qualify(parsed.copy(), schema=dict(known), dialect="spark")
    except OptimizeError as error:
        if not follow or (unknown := _UNKNOWN.search(str(error))) is None:
            return None
        name = unknown["a"] or unknown["b"]
        if _is_no_column(parsed, name):
            return None
        sentence = f"there is no column {name!r}{nearest(name, names)}"
        if name.lower() in names:
            sentence = f"no view that it reads, or more than one, has a column {name!r} here"
        raise step.error(origin, sentence, _where(parsed, name, str(error))) from error
    except SqlglotError:
        return None
    if follow:
        for node, sentence in unlike_widths(whole):
            raise step.error(origin, sentence, offset(node))
        _check_aliases(origin, step, parsed, known)
    given = whole.named_selects
    if not follow or "*" in given or any(name.startswith("_col_") for name in given):
        return None
    return dict.fromkeys(given, "")


def _check_aliases(
    origin: DeclarationOrigin,
    step: ViewStep,
    parsed: exp.Query,
    known: Mapping[str, Mapping[str, str]],
) -> None:
    """Raise DeclarationError for an alias in WHERE; parsing takes it for what it stands for."""
    with suppress(SqlglotError):
        kept = qualify(
            parsed.copy(),
            schema=dict(known),
            dialect="spark",
            expand_alias_refs=False,
            validate_qualify_columns=False,
        )
        for column in aliases_in_where(kept):
            sentence = f"WHERE does not know the alias {column.name!r}: write what it stands for"
            raise step.error(origin, sentence, offset(column))


def _generates(parsed: exp.Query) -> bool:
    """Return whether columns come of generators, whose number and names are not followed."""
    calls: Iterator[exp.Anonymous] = parsed.find_all(exp.Anonymous)
    return any(parsed.find(kind) for kind in _UNFOLLOWED) or any(
        str(call.this).lower() in _GENERATORS for call in calls
    )


def _is_no_column(parsed: exp.Query, name: str) -> bool:
    """Return whether a name may be a collation, or of a struct that its own SELECT makes."""
    for column in parsed.find_all(exp.Column):
        if column.name.lower() != name.lower():
            continue
        select = column.parent_select
        made = {one.alias.lower() for one in select.selects} if select is not None else set()
        if column.find_ancestor(exp.DataType) or column.table.lower() in made - {""}:
            return True
    return False


def _windowed(parsed: exp.Query) -> bool:
    """Return whether columns are read that grouping by a window adds, such as `window.start`."""
    return any(
        _WINDOWS & {column.table.lower(), column.name.lower()}
        for column in parsed.find_all(exp.Column)
    )


def _foreign(parsed: exp.Query) -> bool:
    """Return whether a statement reads what no step gives: a table of Spark's, or a function."""
    return any(t.db or not isinstance(t.this, exp.Identifier) for t in parsed.find_all(exp.Table))


def _lower(found: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): kind or "unknown" for name, kind in found.items()}


def _where(parsed: exp.Query, name: str, message: str) -> int:
    """Return the offset, in the SQL, of the column that a message means, or else the first one."""
    columns: Iterator[exp.Column] = parsed.find_all(exp.Column)
    names = [one.this for one in columns if one.name.lower() == name.lower()]
    meant = [
        one
        for one in names
        if message.endswith(f"Line: {one.meta.get('line')}, Col: {one.meta.get('col')}")
    ]
    return min(map(offset, meant or names), default=0)


def _check_watermark(
    origin: DeclarationOrigin, path: Place, watermark: object, known: Columns
) -> None:
    column = getattr(watermark, "column", None)
    if known is None or column is None:
        return
    kind = _lower(known).get(column.lower(), "")
    if not kind:
        raise origin.error(
            (*path, "watermark"), f"there is no column {column!r}{nearest(column, known)}"
        )
    if kind != "unknown" and not kind.upper().startswith("TIMESTAMP"):
        raise origin.error(
            (*path, "watermark"), f"the column {column} is {kind}: a watermark needs a TIMESTAMP"
        )


def _check_sink(origin: DeclarationOrigin, sink: SinkSpec, known: Columns) -> None:
    if known is None:
        return
    names: Sequence[str] = list(_lower(known))
    for column in sink.partition_by:
        dated = column == DATE and not set(names).isdisjoint(TIMES)
        if column.lower() not in names and not dated:
            sentence = f"sink {sink.name}: there is no column {column!r}{nearest(column, names)}"
            raise origin.error((*sink.declared, "partition_by"), sentence)
    named = [("key", column) for column in sink.key]
    named += [("order", sink.order), ("deletes", sink.deletes)]
    for key, column in named:
        if column and column.lower() not in names:
            sentence = f"sink {sink.name}: there is no column {column!r}{nearest(column, names)}"
            raise origin.error((*sink.declared, key), sentence)
    if KINDS[sink.kind].messages and not sink.topic and "topic" not in names:
        sentence = f"sink {sink.name}: name a topic, or give each row one in a column topic"
        raise origin.error((*sink.declared, "topic"), sentence)


def _flat(error: Exception) -> str:
    return " ".join(str(error).split())


@cache
def functions() -> frozenset[str]:
    """Return the names of Spark's functions in lower case, as its SHOW FUNCTIONS gives them."""
    return _GRAMMAR | frozenset(FILE.read_text("utf-8").split())
