"""The data source `router` on each Spark and Python that the documentation names.

`make pyspark-versions` builds the wheel, and gives each pair an environment of its own outside of
the checkout, with the router and that Spark: minutes each, so that the tests have one pair only.
ARGS are pairs, such as `4.1.4:python3.12`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.contract.conftest import stop_broker
from tests.docs.console import ROOT
from tests.pipelines.pages import done

PAIRS = (
    "4.0.5:python3.11",
    "4.0.5:python3.13",
    "4.1.4:python3.11",
    "4.1.4:python3.13",
    "4.2.0:python3.11",
    "4.2.0:python3.12",
    "4.2.0:python3.13",
)
OTHERS = {"pyspark", "delta_spark"}
PUBLISHED = "router broker > broker.log 2>&1 & seq 1 1000 | router pub orders"
PROGRAM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()

def rows(topic, **options):
    return spark.read.format("router").options(**options).load(topic)

assert rows("orders").count() == 1000
assert rows("orders", startingOffsets='{"orders": {"0": 100}}', minPartitions=4).count() == 900
assert rows("orders", columns="kafka").selectExpr("max(offset)").first()[0] == 999
rows("orders").where("index < 10").write.format("router").mode("append").save("copied")
assert rows("copied").selectExpr("sum(cast(cast(value AS STRING) AS INT))").first()[0] == 55

def written(frame, topic):
    writer = frame.writeStream.format("router").option("topic", topic)
    query = writer.option("checkpointLocation", topic).trigger(availableNow=True).start()
    query.awaitTermination()

orders = spark.readStream.format("router").option("maxOffsetsPerTrigger", 300)
if spark.version < "4.2":
    try:
        written(orders.load("orders"), "followed")
        raise SystemExit("a stream of Spark " + spark.version)
    except Exception as error:
        assert "streams of topics need Spark 4.2 or later" in str(error), error
    print("frames")
else:
    written(orders.load("orders"), "followed")
    assert rows("followed").count() == 1000
    print("frames and streams")
"""


def main(pairs: list[str]) -> int:
    """Print what works with each pair; return the exit status."""
    failed = 0
    with TemporaryDirectory() as folder:
        place = Path(folder)
        done(ROOT, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ".")
        pins = (ROOT / "deploy" / "constraints.txt").read_text("utf-8").splitlines()
        constraints = place / "constraints.txt"
        kept = [pin for pin in pins if pin.partition("==")[0] not in OTHERS]
        constraints.write_text("\n".join(kept), "utf-8")
        for pair in pairs or PAIRS:
            try:
                found = tried(place, pair)
            except (AssertionError, subprocess.SubprocessError) as error:
                failed, found = 1, str(error)
            sys.stdout.write(f"{pair}: {found}\n")
            sys.stdout.flush()
    return failed


def tried(place: Path, pair: str) -> str:
    """Return what the source does on a pair; raise AssertionError with what was printed."""
    spark, python = pair.split(":")
    user = place / pair.replace(":", "-")
    (wheel,) = place.glob("*.whl")
    done(place, python, "-m", "venv", str(user))
    own = str(user / "bin" / "python")
    wanted = [str(wheel), f"pyspark=={spark}", "pyarrow", "pandas"]
    constraints = str(place / "constraints.txt")
    done(user, own, "-m", "pip", "install", "-q", "-c", constraints, *wanted)
    try:
        done(user, "bash", "-euc", PUBLISHED, python=own)
        return done(user, own, "-c", PROGRAM, python=own).strip()
    finally:
        stop_broker(user / "data")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
