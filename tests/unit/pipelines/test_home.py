"""The home of a local Spark: its programs and jars, and no pyspark to be compiled anew."""

from __future__ import annotations

import threading
from pathlib import Path

import pyspark

from router.pipelines import session


def test_home_has_what_spark_is_started_with_and_not_the_zip(tmp_path: Path) -> None:
    made = session.make_home(tmp_path / "cache")
    assert (made / "bin" / "spark-submit").is_file()
    assert list((made / "jars").glob("spark-core_*.jar"))
    assert not (made / "python").exists()
    assert (made / "jars").resolve() == Path(pyspark.__file__).resolve().parent / "jars"


def test_home_is_the_same_whoever_makes_it_at_the_same_time(tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(session.make_home(tmp_path))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert sorted(path.name for path in found[0].iterdir()) == ["bin", "jars"]
