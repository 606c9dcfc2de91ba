"""Reads what Spark wrote to Parquet: in batches of bounded memory, texts as far as they are texts.

Batches of pyarrow's span row groups, so a number of rows alone bounds nothing: two thousand large
messages are gigabytes. Here a batch ends with its row group, and is the smaller the larger its rows
are. Spark's texts may hold bytes that are no UTF-8, such as a header of Kafka's as it came; pyarrow
refuses those, and a batch that is staged with one could never be published.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

BATCH_BYTES: Final = 8 * 1024 * 1024
# How Spark is to write what is read here: in row groups that fit into memory, and those without a
# dictionary, from which one large value would become as many as there are rows.
WRITTEN: Final = {"parquet.block.size": str(BATCH_BYTES), "parquet.enable.dictionary": "false"}
_PAIRS: Final = pa.map_(pa.binary(), pa.binary())


def record_batches(
    path: Path, max_rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in order, of at most so many rows and about BATCH_BYTES each."""
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            fitting = BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
            yield from file.iter_batches(
                batch_size=max(1, min(max_rows, fitting)),
                row_groups=[number],
                columns=columns,
                use_threads=False,
            )


def values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Return a column; bytes of a text that are no UTF-8 become U+FFFD."""
    column = batch[name]
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        if not pa.types.is_map(column.type):
            return [_text(value) for value in column.cast(pa.binary()).to_pylist()]
        pairs = column.cast(_PAIRS).to_pylist()
        return [one and [(_text(key), _text(value)) for key, value in one] for one in pairs]
    return found


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
