"""What several commands share: their options, and the settings that these options amount to.

An option that sets a setting has its name as parameter, with `__` for the dot (`server__port`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from router.settings import Settings, config_file, load

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
pulsar_tls = click.option(
    "--tls",
    "broker__pulsar_tls",
    metavar="HOST:PORT",
    help="Where the broker serves Pulsar clients over TLS, with the certificate of --cert.",
)
http = click.option(
    "--http",
    "broker__http",
    metavar="HOST:PORT",
    help="Where lookups and Pulsar's administration are served over HTTP; port 0: any free.",
)
backend = click.option(
    "--backend",
    "backend__url",
    metavar="URL",
    help="Where messages live: embedded, memory, pulsar://host:port or kafka://host:port,host:port."
    "  [default: embedded]",
)
zookeeper = click.option(
    "--zookeeper",
    "zookeeper__servers",
    metavar="HOST:PORT[,…][/CHROOT]",
    help="The ZooKeeper that the nodes share.  [default: the setting zookeeper.servers]",
)


def examples(*lines: str) -> str:
    """Return the epilog of a command's help: examples, each on a line of its own."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which store of messages it talks to."""
    return config(backend(data(command)))


def tls(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of HTTPS."""
    for option in (
        click.option(
            "--tls-port",
            "server__tls_port",
            metavar="N",
            help="HTTPS on this port, beside HTTP on --port.",
        ),
        click.option(
            "--client-ca",
            "server__client_ca",
            metavar="FILE",
            help="Take client certificates that these authorities (PEM) signed.",
        ),
        click.option(
            "--key",
            "server__key",
            metavar="FILE",
            help="The certificate's key (PEM).  [default: it is in --cert's file]",
        ),
        click.option(
            "--cert",
            "server__cert",
            metavar="FILE",
            help="Serve HTTPS with this certificate (PEM, with its chain).",
        ),
    ):
        command = option(command)
    return command


def broker_certificate(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the Pulsar listener's certificate."""
    for option in (
        click.option(
            "--client-ca",
            "broker__client_ca",
            metavar="FILE",
            help="Take client certificates that these authorities (PEM) signed.",
        ),
        click.option(
            "--key",
            "broker__key",
            metavar="FILE",
            help="The certificate's key (PEM).  [default: it is in --cert's file]",
        ),
        click.option(
            "--cert",
            "broker__cert",
            metavar="FILE",
            help="The certificate of --tls (PEM, with its chain).",
        ),
    ):
        command = option(command)
    return command


def settings_for(config: Path | None, **flags: str | None) -> Settings:
    """Load a command's settings; flags are settings with `__` for the dot, None where not given."""
    given = {name.replace("__", "."): text for name, text in flags.items() if text is not None}
    return load(config_file(os.environ, config), os.environ, given)
