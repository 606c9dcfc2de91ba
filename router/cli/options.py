"""What several commands share: their options, and the settings that these options amount to.

An option that sets a setting has its name as parameter, with `__` for the dot (`server__port`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from router.settings import Settings, config_file, load, variable

config = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file.  [default: $ROUTER_CONFIG, else config/router.cfg if it exists]",
)
data = click.option(
    "--data", "data__dir", metavar="DIR", help="Folder of the node's broker.  [default: data]"
)
pulsar = click.option(
    "--pulsar",
    "broker__pulsar",
    metavar="HOST:PORT",
    help="Where the broker serves Pulsar clients.",
)
backend = click.option(
    "--backend",
    "backend__url",
    metavar="URL",
    help="Where messages live: embedded, memory or pulsar://host:port.  [default: embedded]",
)


def examples(*lines: str) -> str:
    """Return the epilog of a command's help: examples, each on a line of its own."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which store of messages it talks to."""
    return config(backend(data(command)))


def settings_for(config: Path | None, **flags: str | None) -> Settings:
    """Load a command's settings; flags are settings with `__` for the dot, None where not given."""
    given = {name.replace("__", "."): text for name, text in flags.items() if text is not None}
    return load(config_file(os.environ, config), os.environ, given)


def environment(settings: Settings) -> dict[str, str]:
    """Return the variables by which another process of the router loads these very settings.

    Every value that is no default travels, so no file is read a second time (an empty
    ROUTER_CONFIG says so): it may have changed meanwhile.
    """
    given = {
        variable(name): value.text
        for name, value in settings.values.items()
        if value.origin != "default"
    }
    return given | {"ROUTER_CONFIG": ""}
