"""What several commands share: their options, and the settings that these options amount to.

An option that sets a setting has its name as parameter, with `__` for the dot (`server__port`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from router.cli import completing, contexts
from router.errors import SettingError
from router.settings import Settings, config_file, load

as_json = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")
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


CONTEXT: Final = "ROUTER_CONTEXT"
PASSWORD: Final = "ROUTER_PASSWORD"  # noqa: S105 - the name of a variable
TOKEN: Final = "ROUTER_TOKEN"  # noqa: S105 - as above
_ELSEWHERE: Final = frozenset({"context", "server", "user", "token_file", "ca"})


def examples(*lines: str) -> str:
    """Return the epilog of a command's help: examples, each on a line of its own."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def store(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which store of messages it talks to."""
    return config(backend(data(command)))


def anywhere(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of `store`, and those of a router elsewhere."""
    for option in (
        click.option("--ca", metavar="FILE", help="Certificates (PEM) to trust with --server."),
        click.option("--token-file", metavar="FILE", help="A file with the token for --server."),
        click.option(
            "--user",
            metavar="NAME",
            help="User at --server; the password is $ROUTER_PASSWORD, or asked for.",
        ),
        click.option(
            "--server", metavar="URL", help="A router elsewhere, such as https://router:3905."
        ),
        click.option(
            "--context",
            metavar="NAME",
            shell_complete=completing.contexts_of,
            help="A router elsewhere that `router context` knows; local: the data folder."
            "  [default: $ROUTER_CONTEXT, else the context in use]",
        ),
    ):
        command = option(command)
    return store(command)


def context_of(
    config: Path | None, given: Mapping[str, str | None]
) -> tuple[contexts.Context | None, dict[str, str | None]]:
    """Return the router elsewhere that options name, None: the data folder; and the other options.

    What is named on the command line counts before the environment, and that before the context in
    use; options of the data folder mean the data folder. Raises UsageError, SettingError.
    """
    flags = {name: text for name, text in given.items() if name not in _ELSEWHERE}
    server, name = given.get("server"), given.get("context")
    here = config is not None or any(text is not None for text in flags.values())
    if (server or name) and here and name != contexts.LOCAL:
        raise click.UsageError("--server and --context do not go with --data, --backend, --config.")
    if server and name:
        raise click.UsageError("--server and --context: one of them.")
    if server:
        return _server(server, given), flags
    if any(given.get(option) for option in ("user", "token_file", "ca")):
        raise click.UsageError("--user, --token-file and --ca go with --server.")
    if here or name == contexts.LOCAL:
        return None, flags
    known = contexts.load(contexts.path(os.environ))
    chosen = name or os.environ.get(CONTEXT) or known.current
    return None if chosen == contexts.LOCAL else known.get(chosen), flags


def _server(url: str, given: Mapping[str, str | None]) -> contexts.Context:
    user, token_file = given.get("user") or "", given.get("token_file") or ""
    if user and token_file:
        raise click.UsageError("--user and --token-file: one of them.")
    token = os.environ.get(TOKEN, "") if not user and not token_file else ""
    return contexts.Context(
        contexts.check_server(url),
        user,
        password() if user else "",
        token=token,
        token_file=token_file,
        ca=given.get("ca") or "",
    )


def password() -> str:
    """Return $ROUTER_PASSWORD, or ask for it on a terminal; raise SettingError without one."""
    if (found := os.environ.get(PASSWORD)) is not None:
        return found
    if not sys.stderr.isatty():
        raise SettingError(f"There is no terminal to ask for the password on: set {PASSWORD}.")
    asked: str = click.prompt("Password", hide_input=True, err=True)
    return asked


def warn(sentence: str) -> None:
    """Print a sentence on standard error."""
    click.echo(f"router: {sentence}", err=True)


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
