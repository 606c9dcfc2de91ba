"""Parts the messages whose value fits its topic's JSON schema from the others.

What is wrong with a value is one sentence that is the same every time. A schema is read once in
each process that validates. What it refers to must be in the same file: nothing is fetched, so a
schema cannot make a cluster call an address. The alternative, schemas of the store's own registry,
describes Avro records; JSON Schema is what people write for JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from router.pipelines.jobs.options import JobOptions

if TYPE_CHECKING:
    from pyspark.sql import Column

MAX_SCHEMA_BYTES = 1 << 20
OTHERS: Final = "*"
MAX_SENTENCE_CHARACTERS: Final = 500
Check = Callable[[object], str | None]


def schemas(options: JobOptions, folder: Path) -> dict[str, str]:
    """Return the text of each topic's schema, from files in `folder`; raise ValueError."""
    found = {}
    for topic, name in options.table("schemas").items():
        file = folder / name
        try:
            with file.open("rb") as opened:
                raw = opened.read(MAX_SCHEMA_BYTES + 1)
            text = raw.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the schema of {topic} cannot be read: {error}") from error
        if len(raw) > MAX_SCHEMA_BYTES:
            raise ValueError(f"the schema of {topic} has more than {MAX_SCHEMA_BYTES} bytes")
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


class _Error(Protocol):
    message: str
    json_path: str


def checked(name: str, text: str) -> None:
    """Raise ValueError, with a sentence, where a schema's text is none."""
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415 - optional: extra `pipelines`
    from jsonschema.validators import validator_for  # noqa: PLC0415

    try:
        schema = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the schema of {name} is no JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise ValueError(f"the schema of {name} is no JSON object")  # noqa: TRY004 - one class
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        raise ValueError(
            f"the schema of {name} is no JSON schema: {error.json_path}: {error.message}"
        ) from error


@lru_cache(maxsize=256)
def compiled(text: str) -> Check:
    """Return what checks a parsed value against a schema, given as JSON text."""
    from jsonschema import validators  # noqa: PLC0415
    from jsonschema.exceptions import best_match  # noqa: PLC0415
    from referencing import Registry  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    schema = orjson.loads(text)
    validator = validators.validator_for(schema)(schema, registry=Registry())

    def check(value: object) -> str | None:
        try:
            error = best_match(validator.iter_errors(value))
        except Unresolvable as unresolved:
            return f"the schema refers to {unresolved.ref}, which is not in it"
        except RecursionError:
            return "nested too deeply to be checked"
        return None if error is None else sentence(error)

    return check


def sentence(error: _Error) -> str:
    """Return where a value is wrong and how."""
    return f"{error.json_path}: {error.message}"[:MAX_SENTENCE_CHARACTERS]


def reason(schemas: Mapping[str, str], topic: str, value: bytes | None) -> str | None:
    """Return what is wrong with a topic's value, None: nothing; `*` is the schema of the others."""
    text = schemas.get(topic, schemas.get(OTHERS))
    if text is None:
        return f"there is no schema for {topic}"
    if value is None:
        return "there is no value"
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        return f"no JSON: {error}"[:MAX_SENTENCE_CHARACTERS]
    return compiled(text)(parsed)
