"""Where declarations are: a folder of one's own, and those that come with the router."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from router.errors import SettingError
from router.errors.quoting import nearest
from router.pipelines.declaration import Pipeline
from router.pipelines.loading import NAME, load
from router.pipelines.reading import DeclarationError

FOLDER: Final = Path("config/pipelines")
SHIPPED: Final = Path(__file__).parent / "shipped"
_CHECKPOINT: Final = re.compile(r"^(\s*checkpoint\s*=\s*).*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DeclarationFile:
    """A declaration that is there; `shipped`: it came with the router."""

    name: str
    file: Path
    shipped: bool

    def sentence(self) -> str:
        """Return what it is for, or why it cannot be read."""
        try:
            return load(self.file, self.name).description or "(no description)"
        except DeclarationError as error:
            return str(error)


def found(folder: Path = FOLDER) -> Iterator[DeclarationFile]:
    """Yield all declarations by name, one's own first."""
    for place, shipped in ((folder, False), (SHIPPED, True)):
        for file in sorted(place.glob("*.toml")):
            yield DeclarationFile(file.stem, file, shipped)


def named(name: str, folder: Path = FOLDER) -> Pipeline:
    """Return the pipeline of a name, or of a file's path; one's own go before shipped ones.

    Raises DeclarationError, and SettingError where there is none.
    """
    if name.endswith(".toml"):
        return load(Path(name), Path(name).stem)
    known = list(found(folder))
    for one in known:
        if one.name == name:
            return load(one.file, name)
    near = nearest(name, [one.name for one in known])
    raise SettingError(f"there is no pipeline {name!r} in {folder}, nor a shipped one{near}")


def write_new(name: str, template: str, folder: Path = FOLDER) -> Path:
    """Write a commented declaration and return its path; an existing file is never touched.

    `template` is the name of a shipped pipeline, empty: the general one. Raises SettingError.
    """
    if not NAME.fullmatch(name):
        raise SettingError(f"a pipeline's name is 1 to 100 of a-z 0-9 . _ -, not {name!r}")
    text = _template(template).replace("{name}", name)
    # Two pipelines never share a checkpoint.
    text = _CHECKPOINT.sub(rf'\g<1>"pipelines/checkpoints/{name}"', text)
    path = folder / f"{name}.toml"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SettingError(f"{path} is there already") from None
    return path


def _template(template: str) -> str:
    if not template:
        return GENERAL
    known = {one.name: one.file for one in found(SHIPPED)}
    if template not in known:
        raise SettingError(
            f"there is no shipped pipeline {template!r}; known are {', '.join(sorted(known))}"
        )
    return known[template].read_text("utf-8")


GENERAL: Final = '''\
# The pipeline {name}: topics in, SQL between, topics and tables out.
#   router pipeline check {name}      reports errors, without Spark
#   router pipeline run {name}        until Ctrl-C or SIGTERM
description = "Large orders, into a topic and a table."
# The folder of the state of a run. To start from the beginning, delete it, and tables of Parquet
# with it. Two pipelines must not share a folder.
checkpoint = "pipelines/checkpoints/{name}"
# Bad records: fail (end the run), skip (count them), dlq (publish them to <topic>.dlq, unchanged).
bad_records = "dlq"

[source]
topics = ["orders"]             # or: pattern = "orders.*"
format = "json"                 # bytes, text, json, cambria, avro, protobuf, csv
# Columns as in CREATE TABLE. Without them, JSON's are inferred once; Avro's and Protobuf's are the
# topic's.
schema = "id BIGINT, customer STRING, amount DOUBLE"
starting = "earliest"           # or latest, or ms since 1970: where a new checkpoint begins
max_rows = 100000               # about this many in a batch
on_loss = "fail"                # or skip: if messages were lost before they were read

# Steps are views. `records` has the columns of the format, and _topic, _partition, _position,
# _index, _key, _value, _properties, _event_time, _publish_time of each message.
[[step]]
name = "large"
sql = """
SELECT id, customer, amount, to_date(_publish_time) AS date
FROM records
WHERE amount >= 1000
"""

[[sink]]
name = "table"
kind = "parquet"                # or delta, or topic
from = "large"                  # default: the last step
path = "pipelines/tables/{name}"
partition_by = ["date"]

# A message is the column value (and key, properties, event_time); without one, the row as JSON.
[[sink]]
name = "topic"
kind = "topic"
from = "large"
topic = "orders.large"

[trigger]
every = "10s"                   # or: available_now = true, which ends when all is read

[resources]                     # Spark's own settings
"spark.driver.memory" = "1g"
'''
