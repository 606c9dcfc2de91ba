"""Of kafka-python nothing is imported by the product, and only what is public elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[4]
IMPORT = re.compile(
    r"^\s*(?:from|import)\s+(kafka(?:\.\w+)*)\b|import_module\(f?[\"'](kafka(?:\.[\w{}]+)*)", re.M
)
PUBLIC = {
    "kafka",
    "kafka.admin",
    "kafka.errors",
    "kafka.structs",
    # What a consumer is given to choose how partitions are assigned.
    "kafka.coordinator.assignors.cooperative_sticky",
    "kafka.coordinator.assignors.range",
}
# Where kafka-python's own codecs are what ours are compared with.
COMPARED = {
    "bench/kafka_codec.py": "kafka.protocol",
    "tests/unit/backends/kafka/test_producing.py": "kafka.record",
    "tests/unit/backends/kafka/test_records.py": "kafka.record",
    "tests/wire/kafka/records_of.py": "kafka.record",
    "tests/wire/kafka/test_records.py": "kafka.record",
}


def imported(folder: str) -> dict[str, set[str]]:
    """Return the modules of kafka-python that each file of a folder imports."""
    found = {
        str(path.relative_to(ROOT)): {
            one or other for one, other in IMPORT.findall(path.read_text())
        }
        for path in (ROOT / folder).rglob("*.py")
    }
    return {path: modules for path, modules in found.items() if modules}


def test_the_product_imports_nothing_of_kafka_python() -> None:
    assert imported("router") == {}


def test_tests_and_measurements_import_what_is_public() -> None:
    for path, modules in (imported("tests") | imported("bench")).items():
        private = modules - PUBLIC
        assert all(m.startswith(COMPARED.get(path, "-")) for m in private), (path, private)
