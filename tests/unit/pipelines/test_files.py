"""Tables are refused to a checkpoint that did not number their batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from router import settings as all_settings
from router.backends.memory import MemoryBackend
from router.errors import SettingError
from router.pipelines.declaration import SinkSpec
from router.pipelines.sinks import SinkContext
from router.pipelines.sinks.parquet_files import check_table


@pytest.mark.parametrize("batch", ["0", "9.compact"])
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_parquet_is_refused_when_its_checkpoint_was_deleted(
    folder: Path, batch: str, prefix: str
) -> None:
    settings = all_settings.load(None, {}, {"data.dir": str(folder)})
    context = SinkContext("p", str(folder / "checkpoint"), MemoryBackend(), settings)
    sink = SinkSpec("s", "parquet", path=f"{prefix}{folder}/table")
    log = folder / "table" / "_spark_metadata"
    check_table(sink, context)
    log.mkdir(parents=True)
    (log / f".{batch}.crc").touch()
    check_table(sink, context)
    (log / batch).touch()
    with pytest.raises(SettingError, match="was written with another checkpoint"):
        check_table(sink, context)
    (folder / "checkpoint" / "s").mkdir(parents=True)
    (folder / "checkpoint" / "s" / "metadata").touch()
    check_table(sink, context)
