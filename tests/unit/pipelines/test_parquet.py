"""Parquet files are read in bounded memory, every row once and in order."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ReadFailedError
from router.pipelines.sinks.parquet import BATCH_BYTES, record_batches
from router.pipelines.sinks.topic import check_rows


@pytest.mark.slow
@given(
    sizes=st.lists(st.integers(0, 40), max_size=30), group=st.integers(1, 9), most=st.integers(1, 9)
)
def test_record_batches_give_every_row_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], group: int, most: int
) -> None:
    values = [bytes([place]) * size for place, size in enumerate(sizes)]
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(pa.table({"value": pa.array(values, pa.binary())}), path, row_group_size=group)
    found = list(record_batches(path, most))
    assert all(batch.num_rows <= most for batch in found)
    assert [value for batch in found for value in batch["value"].to_pylist()] == values


def test_record_batches_are_small_when_rows_are_large(folder: Path) -> None:
    values = [bytes([place]) * 1_000_000 for place in range(40)]
    path = folder / "rows.parquet"
    table = pa.table({"value": pa.array(values, pa.binary())})
    pq.write_table(table, path, row_group_size=20, use_dictionary=False, compression="snappy")
    found = [(batch.num_rows, batch.nbytes) for batch in record_batches(path, 2_048)]
    assert sum(rows for rows, _ in found) == 40
    assert max(size for _, size in found) <= BATCH_BYTES + 1_000_000


def test_rows_that_executors_wrote_elsewhere_are_missed(folder: Path) -> None:
    for number in range(2):
        pq.write_table(pa.table({"n": [1, 2, 3]}), folder / f"part-{number}.parquet")
    check_rows(folder, 6)
    (folder / "part-1.parquet").unlink()
    with pytest.raises(ReadFailedError, match=r"wrote 6 rows .*3 are there.*all executors share"):
        check_rows(folder, 6)
