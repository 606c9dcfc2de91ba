"""What ended a query, in one sentence: Spark wraps the reason in plans, stacks and Python's own."""

from __future__ import annotations

import re
from typing import Final

from router.pipelines.formats import BAD_RECORD

MAX_SENTENCE_CHARACTERS: Final = 700
_PYTHON: Final = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
_BAD: Final = re.compile(
    re.escape(BAD_RECORD) + r"(.+?) \(topic (.*?), partition (\d+), position (.*?)\)"
)
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named 'router['.]")
LACKING: Final = (
    "the Python of Spark's workers lacks this package: install it there with its extra `pipelines`,"
    " or name a Python that has it, PYSPARK_PYTHON or spark.pyspark.python"
)
# A table that was written again: the plan has the files of the last look, or the old columns.
_GONE: Final = re.compile(
    r"\[FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file"
    r" (?:file://)?(.+?)\. File does not exist"
)
_CHANGED: Final = re.compile(
    r"\[DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS\].*?\bChanges:\s*(.+?)(?:\s*SQLSTATE|\n\n|$)", re.DOTALL
)
_ENDLESS: Final = "streaming aggregations without watermark"
NO_GROUP_ENDS: Final = (
    "no group is ever complete, so that the mode append never gets one: group by the column of the"
    " watermark, or by window(COLUMN, '1 minute') of it, or give the sink another mode"
)
_CLASS: Final = re.compile(
    r"^(?:\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: )?(?:\[[A-Z_0-9.]+\]\s*)?"
)
_CAUSED: Final = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)
_PLACE: Final = re.compile(r" SQLSTATE: \w+|[;,]? line \d+,? pos \d+;?")


def sentence(error: BaseException | str) -> str:
    """Return what a failure of Spark's says, in one bounded line."""
    text = str(error)
    if bad := _BAD.search(text):
        return bounded(
            f"bad record in topic {bad[2]}, partition {bad[3]}, position {bad[4]}: {bad[1]}"
        )
    if _MISSING.search(text):
        return LACKING
    if message := NO_GROUP_ENDS if _ENDLESS in text else _of_table(text):
        return bounded(message)
    if found := [message for kind, message in _PYTHON.findall(text) if not kind.startswith("Py4J")]:
        return bounded(found[-1])
    if caused := _CAUSED.findall(text):
        return bounded(_plain(caused[-1]))
    return bounded(_plain(text))


def _of_table(text: str) -> str:
    """Return what became of a table that a batch reads, nothing: that is not what failed."""
    if gone := _GONE.search(text):
        return (
            f"the file {gone[1]} is not there any more: write new files of a table beside the old"
            " ones, which a batch may read. The next run goes on with those that are there"
        )
    if changed := _CHANGED.search(text):
        return (
            f"the columns of a Delta table are not those that the run began with: {changed[1]}. The"
            " next run begins with the new ones"
        )
    return ""


def misses_file(error: BaseException) -> bool:
    """Return whether a batch did not find a file of a table, as where that was written again."""
    return _GONE.search(str(error)) is not None


def bounded(text: str) -> str:
    """Return a text in one line that is not endless."""
    flat = " ".join(text.split())
    return (
        flat
        if len(flat) <= MAX_SENTENCE_CHARACTERS
        else f"{flat[: MAX_SENTENCE_CHARACTERS - 3]}..."
    )


def _plain(text: str) -> str:
    """Return the first statement, without Spark's class of errors, plan, place and SQLSTATE."""
    first = re.split(r"\n\n|;\s*\n|\n=== |\nJVM stacktrace|\n== SQL", text.strip())[0]
    without = _CLASS.sub("", first)
    return _PLACE.sub("", without).strip()
