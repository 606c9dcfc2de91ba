"""The results of tests as people read them, and as JUnit's XML for builds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from router.pipelines.testing.comparing import CaseResult

# Characters that XML 1.0 has no way to say.
_NO_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def lines(result: CaseResult) -> Iterator[str]:
    """Yield the lines of one case: whether it passed, and what differs."""
    failures = result.failures()
    yield f"{'FAILED' if failures else 'passed'}  {result.case.name}  ({result.seconds:.1f} s)"
    for failure in failures:
        yield f"  {failure}"


def write_junit(file: Path, results: Mapping[Path, Sequence[CaseResult]]) -> None:
    """Write the results of files of tests as a report of JUnit. Raises OSError."""
    suites = ElementTree.Element("testsuites")
    for name, cases in results.items():
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=str(name),
            tests=str(len(cases)),
            failures=str(sum(bool(one.failures()) for one in cases)),
            errors="0",
            time=f"{sum(one.seconds for one in cases):.3f}",
        )
        for one in cases:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=Path(name).stem,
                name=_NO_XML.sub("?", one.case.name),
                time=f"{one.seconds:.3f}",
            )
            if found := one.failures():
                failure = ElementTree.SubElement(
                    case, "failure", message=_NO_XML.sub("?", found[0])
                )
                failure.text = _NO_XML.sub("?", "\n".join(found))
    ElementTree.ElementTree(suites).write(file, "utf-8", xml_declaration=True)
