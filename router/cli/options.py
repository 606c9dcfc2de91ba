"""What several commands share: their options, and the settings that these options amount to.

An option that sets a setting has its name as parameter, with `__` for the dot (`server__port`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from router.cli import contexts
from router.errors import RouterError, SettingError
from router.settings import Settings, config_file, load

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def several(*options: Decorator) -> Decorator:
    """Return what gives a command several options, in this order."""

    def give(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return give


def setting(option: str, name: str, metavar: str, text: str) -> Decorator:
    """Return an option that sets the setting `name`, which has `__` for the dot."""
    return click.option(option, name, metavar=metavar, help=text)


def message_format(text: str) -> Decorator:
    """Return the option that names a format of `formats`, the parameter `form`."""
    formats = click.Choice(("text", "json", "ndjson", "cambria", "raw"))
    return click.option(
        "--format", "form", type=formats, default="text", show_default=True, help=text
    )


def complete_contexts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of contexts that begin so, for the completion of a shell."""
    del ctx, param
    with suppress(RouterError):
        names = [contexts.LOCAL, *contexts.load(contexts.path(os.environ)).known]
        return sorted(name for name in names if name.startswith(incomplete))
    return []


as_json = click.option("--json", "as_json", is_flag=True, help="JSON, for programs.")
config = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file.  [default: $ROUTER_CONFIG, else config/router.cfg if it exists]",
)
data = setting("--data", "data__dir", "DIR", "Folder of the node's broker.  [default: data]")
http = setting(
    "--http",
    "broker__http",
    "HOST:PORT",
    "Where lookups and Pulsar's administration are served over HTTP; port 0: any free.",
)
backend = setting(
    "--backend",
    "backend__url",
    "URL",
    "Where messages live: embedded, memory, pulsar://host:port or kafka://host:port,host:port."
    "  [default: embedded]",
)
zookeeper = setting(
    "--zookeeper",
    "zookeeper__servers",
    "HOST:PORT[,…][/CHROOT]",
    "The ZooKeeper that the nodes share.  [default: the setting zookeeper.servers]",
)


def _listener(protocol: str, plain: str, secure: str) -> Decorator:
    """Return the options of a listener's two addresses."""
    name, where = f"broker__{protocol.lower()}", f"Where the broker serves {protocol} clients"
    over_tls = f"{where} over TLS, with the certificate of --cert."
    return several(
        setting(plain, name, "HOST:PORT", f"{where}."),
        setting(secure, f"{name}_tls", "HOST:PORT", over_tls),
    )


listeners = several(
    _listener("Pulsar", "--pulsar", "--tls"),
    _listener("Kafka", "--kafka", "--kafka-tls"),
    _listener("NATS", "--nats", "--nats-tls"),
)
"""The options that say where the broker listens."""
store = several(config, backend, data)
"""The options that say which store of messages a command talks to."""
elsewhere = several(
    click.option(
        "--context",
        metavar="NAME",
        shell_complete=complete_contexts,
        help="A router elsewhere that `router context` knows; local: the data folder."
        "  [default: $ROUTER_CONTEXT, else the context in use]",
    ),
    click.option(
        "--server", metavar="URL", help="A router elsewhere, such as https://router:3905."
    ),
    click.option(
        "--user",
        metavar="NAME",
        help="User at --server; the password is $ROUTER_PASSWORD, or asked for.",
    ),
    click.option("--token-file", metavar="FILE", help="A file with the token for --server."),
    click.option("--ca", metavar="FILE", help="Certificates (PEM) to trust with --server."),
)
"""The options that name a router elsewhere."""
anywhere = several(store, elsewhere)
"""The options of `store`, and those of a router elsewhere."""


def _certificate(section: str, text: str) -> Decorator:
    """Return the options of a certificate: its file, its key's, and which clients' are taken."""
    return several(
        setting("--cert", f"{section}__cert", "FILE", text),
        setting(
            "--key",
            f"{section}__key",
            "FILE",
            "The certificate's key (PEM).  [default: it is in --cert's file]",
        ),
        setting(
            "--client-ca",
            f"{section}__client_ca",
            "FILE",
            "Take client certificates that these authorities (PEM) signed.",
        ),
    )


tls = several(
    _certificate("server", "Serve HTTPS with this certificate (PEM, with its chain)."),
    setting("--tls-port", "server__tls_port", "N", "HTTPS on this port, beside HTTP on --port."),
)
"""The options of HTTPS."""
broker_certificate = _certificate("broker", "The certificate of --tls (PEM, with its chain).")
"""The options of the Pulsar listener's certificate."""
CONTEXT: Final = "ROUTER_CONTEXT"
PASSWORD: Final = "ROUTER_PASSWORD"  # noqa: S105 - the name of a variable
TOKEN: Final = "ROUTER_TOKEN"  # noqa: S105 - as above
_ELSEWHERE: Final = frozenset({"context", "server", "user", "token_file", "ca"})
WHERE: Final = _ELSEWHERE | {"data__dir", "backend__url"}
"""The parameters of `anywhere`, but `config`."""


def examples(*lines: str) -> str:
    """Return the epilog of a command's help: examples, each on a line of its own."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


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
    entered: str = click.prompt("Password", hide_input=True, err=True)
    return entered


def warn(sentence: str) -> None:
    """Print a sentence on standard error."""
    click.echo(f"router: {sentence}", err=True)


def settings_for(config: Path | None, **flags: str | None) -> Settings:
    """Load a command's settings; flags are settings with `__` for the dot, None where not given."""
    given = {name.replace("__", "."): text for name, text in flags.items() if text is not None}
    return load(config_file(os.environ, config), os.environ, given)


def required(settings: Settings, name: str, option: str, what: str) -> str:
    """Return a setting that a command cannot do without; raise SettingError if it is empty."""
    if found := settings.text(name):
        return found
    raise SettingError(f"which {what}? Name it with {option}, or in the setting {name}")
