"""Has Spark do once what pipelines do, so that its classes can be archived: see `classes`.

python -m router.pipelines.exercise '-XX:ArchiveClassesAtExit=…'
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from router.pipelines import session


def main(options: str) -> None:
    """Stream a line of JSON into Parquet and Delta, and read it back."""
    resources = {"spark.master": "local[2]", session.JAVA_OPTIONS: options}
    spark = session.start("exercise", resources, ["delta"])
    with tempfile.TemporaryDirectory(prefix="router-exercise-") as scratch:
        folder = Path(scratch)
        (folder / "in").mkdir()
        (folder / "in" / "one.json").write_text('{"id": 1, "name": "a"}\n')
        for kind in ("parquet", "delta"):
            rows = spark.readStream.schema("id BIGINT, name STRING").json(str(folder / "in"))
            query = (
                rows.selectExpr("upper(name) AS name", "id")
                .repartition(2)
                .writeStream.format(kind)
                .option("path", str(folder / kind))
                .option("checkpointLocation", str(folder / f"{kind}.checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            spark.read.format(kind).load(str(folder / kind)).collect()
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
