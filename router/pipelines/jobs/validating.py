"""Parts the messages whose value fits its topic's JSON schema from the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from router.pipelines.jobs.json_schemas import checked, reason
from router.pipelines.jobs.options import Options

if TYPE_CHECKING:
    from pyspark.sql import Column

LARGEST_SCHEMA = 1 << 20


def schemas(options: Options, folder: Path) -> dict[str, str]:
    """Return the text of each topic's schema, from files in `folder`; raise ValueError."""
    found = {}
    for topic, name in options.table("schemas").items():
        file = folder / name
        try:
            with file.open("rb") as opened:
                raw = opened.read(LARGEST_SCHEMA + 1)
            text = raw.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the schema of {topic} cannot be read: {error}") from error
        if len(raw) > LARGEST_SCHEMA:
            raise ValueError(f"the schema of {topic} has more than {LARGEST_SCHEMA} bytes")
        checked(topic, text)
        found[topic] = text
    return found


def problem(texts: Mapping[str, str]) -> Callable[[Column, Column], Column]:
    """Return the function of topic and value that is null where the value fits.

    It runs in Spark's Python workers, a record batch at a time; the schemas travel with it.
    """
    from pyspark.sql.functions import udf  # noqa: PLC0415 - schemas are checked without Spark

    own = dict(texts)

    @udf("string", useArrow=True)
    def found(topic: str, value: bytes | None) -> str | None:
        return reason(own, topic, None if value is None else bytes(value))

    return found
