"""What a killed run may leave in a checkpoint that Spark would not start beside.

Spark writes each entry of a checkpoint's logs to a hidden file first and renames it. A run that is
killed in the middle of its very first entry leaves the hidden file alone, and the next one would be
refused for a checkpoint without offsets that is not empty: for good, although nothing was read yet.
Spark's check itself stays on, for it finds checkpoints whose offsets somebody deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# An object of the JVM's Hadoop file system.
Hadoop = Any


def sweep(spark: SparkSession, checkpoint: str) -> None:
    """Delete unfinished entries from a log of offsets that has no other; any file system's."""
    # The class that Spark Connect shares has neither; a driver of ours has both.
    context = cast("Any", spark.sparkContext)
    folder: Hadoop = context._jvm.org.apache.hadoop.fs.Path(checkpoint, "offsets")
    files: Hadoop = folder.getFileSystem(context._jsc.hadoopConfiguration())
    if not files.exists(folder):
        return
    found = [status.getPath() for status in files.listStatus(folder)]
    if all(str(path.getName()).startswith(".") for path in found):
        for path in found:
            files.delete(path, False)
