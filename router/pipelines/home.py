"""A home for a local Spark whose Python processes import the installed pyspark, which is compiled.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` first on the path of each Python process that it
starts, and what is imported from there is compiled anew by each: 1.3 s of processor time, for
several processes of every query. A home that has Spark's programs and jars, but not that zip,
leaves them the package that this process has as well. On a cluster the zip is what brings pyspark
to machines that have none, and nothing is changed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_PARTS: Final = ("bin", "jars")


def make(root: Path) -> Path:
    """Return the home below a folder, made if need be; raise OSError where it cannot be made."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None, "the session looked for it"
    assert found.origin is not None, "it is a package"
    package = Path(found.origin).resolve().parent
    place = hashlib.sha256(os.fsencode(package)).hexdigest()[:16]
    home = root / f"spark-{importlib.metadata.version('pyspark')}-{place}"
    home.mkdir(parents=True, exist_ok=True)
    for part in _PARTS:
        # Others may make the same home at the same time.
        with suppress(FileExistsError):
            (home / part).symlink_to(package / part, target_is_directory=True)
    return home
