"""Fixtures of the HTTP side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flask import Flask

from router.app import create_app
from router.settings import load
from tests.unit.web import compiled
from tests.unit.web.applications import Site


@pytest.fixture(scope="session", autouse=True)
def shared_compilation() -> Iterator[None]:
    """Compile each rule and template once for all applications."""
    with pytest.MonkeyPatch.context() as patch:
        compiled.share(patch)
        yield


@pytest.fixture
def sites() -> Iterator[Callable[..., Site]]:
    """Makes applications with settings of the test's own."""
    made: list[Site] = []

    def make(**settings: str) -> Site:
        made.append(Site(settings))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(sites: Callable[..., Site]) -> Site:
    """An application with the default settings."""
    return sites()


@pytest.fixture
def everything(tmp_path: Path) -> Iterator[Flask]:
    """An application with all routes, Pulsar's administration among them; its broker is not up."""
    given = {"data.dir": str(tmp_path), "broker.spawn": "false", "backend.timeout": "10ms"}
    app = create_app(load(None, {}, given))
    yield app
    app.extensions["router.close"]()
