"""deploy/constraints.txt pins all that is installed, and what is installed by it goes together."""

from __future__ import annotations

import re
from importlib.metadata import distribution, requires, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.tools import DEPLOY, ROOT

NAME = "dragoman"
PINS = dict(
    re.findall(r"^([\w.-]+)==(\S+)$", (DEPLOY / "constraints.txt").read_text(), re.MULTILINE)
)
PINNED = {canonicalize_name(name): pin for name, pin in PINS.items()}
# With constraints pip installs what they say, wherever the line names a checkout or a wheel.
INSTALLS = {
    "Makefile": 2,
    "deploy/docker/Dockerfile": 1,
    "deploy/systemd/dragoman.service": 1,
}


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> list[Requirement]:
    """Return the requirements of a distribution here, and of all that it needs."""
    found = []
    for text in requires(name) or ():
        requirement = Requirement(text)
        wanted = [extra for extra in (*extras, "") if _applies(requirement, extra)]
        key = canonicalize_name(requirement.name), ",".join(sorted(requirement.extras))
        if not wanted:
            continue
        found.append(requirement)
        if key not in seen:
            seen.add(key)
            found += needed(requirement.name, frozenset(requirement.extras), seen)
    return found


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def test_everything_that_is_needed_is_pinned_to_what_fits() -> None:
    found = needed(NAME, frozenset({"test", "docs", "opentelemetry", "pipelines"}), set())
    assert len(found) > 100
    for requirement in found:
        name = canonicalize_name(requirement.name)
        assert name in PINNED, f"{name} is in no pin: make constraints"
        assert requirement.specifier.contains(PINNED[name], prereleases=True), requirement


def test_what_is_installed_is_what_is_pinned() -> None:
    installed = {name: version(name) for name in PINNED if _is_installed(name)}
    assert installed.items() <= PINNED.items()


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except ModuleNotFoundError:
        return False
    return True


def test_installations_take_the_pins() -> None:
    pinned = re.compile(r"install .*--constraint (deploy/constraints\.txt|\$\(CONSTRAINTS\))")
    for name, times in INSTALLS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        assert len(pinned.findall(text)) == times, name


def test_no_page_installs_from_the_index_what_is_not_there() -> None:
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *DEPLOY.rglob("*.*")]
    files += (ROOT / "router").rglob("*.py")
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert not re.search(rf"pip install[^\n]*['\" ]{NAME}(\[|['\" \n]|$)", text), file
