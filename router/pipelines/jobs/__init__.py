"""Pipelines that are more than steps of SQL: validate, replay, audit, swap and maintain.

`validate` is a stream like others: it decides which records are bad. The rest run once and end.
Their keys are checked without Spark; what needs it is imported when a job begins.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from router.pipelines.declaration import JobSpec, is_local
from router.pipelines.jobs.options import JobContext, read

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["JobContext", "check", "problem", "run", "streams"]

STREAMS: Final = ("validate",)


def check(job: JobSpec, folder: Path, checkpoint: str) -> None:
    """Raise ValueError, with one sentence, for what a job cannot be; files are found in `folder`.

    Needs neither Spark nor Java.
    """
    options = read(job.kind, job.options)
    if job.kind == "replay" and not is_local(checkpoint):
        raise ValueError(
            "the checkpoint of a replay has to be a folder of this machine, and"
            f" {checkpoint} is none"
        )
    if job.kind == "validate":
        from router.pipelines.jobs import validating  # noqa: PLC0415 - see above

        validating.schemas(options, folder)


def streams(job: JobSpec) -> bool:
    """Tell whether the job is a stream, with a source and sinks, and not one that runs once."""
    return job.kind in STREAMS


def problem(job: JobSpec, folder: Path) -> Callable[[Column, Column], Column]:
    """Return the function of the columns topic and value that says what is wrong, or is null."""
    from router.pipelines.jobs import validating  # noqa: PLC0415

    return validating.problem(validating.schemas(read(job.kind, job.options), folder))


def run(context: JobContext) -> bool:
    """Run a job that is no stream to its end; return whether all is well with what it looked at.

    Raises RouterError where it cannot go on.
    """
    job = context.pipeline.job
    assert job is not None, "only pipelines with a job are run here"
    options = read(job.kind, job.options)
    if job.kind == "replay":
        from router.pipelines.jobs import replaying  # noqa: PLC0415

        return replaying.replay(context, options)
    if job.kind == "audit":
        from router.pipelines.jobs import audit  # noqa: PLC0415

        return audit.audit(context, options)
    if job.kind == "swap":
        from router.pipelines.jobs import swapping  # noqa: PLC0415

        swapping.swap(context.spark, context.pipeline.sinks, options, context.notify)
        return True
    from router.pipelines.jobs import maintaining  # noqa: PLC0415

    now = context.wall_ms()
    if options.text("table"):
        maintaining.maintain(context.spark, options, now, context.notify)
    else:
        sinks = context.pipeline.sinks
        maintaining.maintain_sinks(context.spark, sinks, options, now, context.notify)
    return True
