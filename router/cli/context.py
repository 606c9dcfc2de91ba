"""`router context`: named routers elsewhere, with the credentials for them."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Final

import click

from router.cli import contexts, output
from router.cli.options import as_json, complete_contexts, examples, password, warn
from router.errors import ConflictError, SettingError
from router.settings import MASK

SECRET: Final = frozenset({"password", "token"})


@click.group(
    epilog=examples(
        "router context add prod --server https://router.example.org:3905 --user anna",
        "router context use prod                  all commands work there from now on",
        "router topics list --context prod        this one does",
        "router context use local                 back to the data folder",
    )
)
def command() -> None:
    """Name routers elsewhere, so that commands work there over HTTP.

    They are kept in contexts.json in $XDG_CONFIG_HOME/dragoman (~/.config/dragoman),
    which only its user may read.
    """


@command.command(
    epilog=examples(
        "router context add prod --server https://router.example.org:3905 --user anna",
        "router context add prod --server https://router:3905 --token-file ~/router.token",
        "router context add test --server http://127.0.0.1:3904 --replace",
    )
)
@click.argument("name")
@click.option("--server", required=True, metavar="URL", help="The router's address.")
@click.option(
    "--user",
    default="",
    metavar="NAME",
    help="Who to be there; the password is $ROUTER_PASSWORD, or asked for, and kept in the file.",
)
@click.option(
    "--password-file", metavar="FILE", help="Read the password from this file at each use."
)
@click.option("--token-file", metavar="FILE", help="Read a token from this file at each use.")
@click.option("--ca", metavar="FILE", help="Certificates (PEM) to trust instead of the system's.")
@click.option(
    "--namespace",
    default="public/default",
    show_default=True,
    metavar="TENANT/NAMESPACE",
    help="Where the server has topics of the DMaaP dialect.",
)
@click.option("--replace", is_flag=True, help="Replace a context of this name.")
@as_json
def add(name: str, server: str, replace: bool, as_json: bool, **given: str | None) -> None:
    """Keep a router elsewhere under NAME; the first one is in use from then on."""
    contexts.check_name(name)
    made = _made(contexts.check_server(server), given)
    with contexts.changing(_file()) as document:
        if name in document["contexts"] and not replace:
            raise ConflictError(f"There is a context {name} already; --replace replaces it.")
        if not document["contexts"]:
            document["current"] = name
        document["contexts"][name] = made
    if made.server.startswith("http:") and (made.user or made.token_file):
        host = made.server.removeprefix("http://").partition("/")[0].rpartition(":")[0]
        if host not in {"127.0.0.1", "localhost", "[::1]"}:
            warn("over http:// everybody on the way can read the credentials; use https://")
    output.report(as_json, "Added", "context", name)


@command.command(
    "list", epilog=examples("router context list", "router context list --json | jq .")
)
@as_json
def list_contexts(as_json: bool) -> None:
    """Print all contexts; * is the one in use."""
    found = contexts.load(_file())
    known = {name: _shown(one) for name, one in sorted(found.known.items())}
    rows = [
        ("*" if name == found.current else "", name, one.server, one.user or _token(one))
        for name, one in sorted(found.known.items())
    ]
    rows.append(
        ("*" if found.current == contexts.LOCAL else "", contexts.LOCAL, "the data folder", "")
    )
    document = {"current": found.current, "contexts": known}
    output.respond(as_json, document, *output.table(("", "NAME", "SERVER", "AS"), rows))


@command.command(epilog=examples("router context use prod", "router context use local"))
@click.argument("name", shell_complete=complete_contexts)
@as_json
def use(name: str, as_json: bool) -> None:
    """Have commands that name no context work on NAME; local is the data folder."""
    with contexts.changing(_file()) as document:
        if name != contexts.LOCAL:
            contexts.Contexts(document["contexts"]).get(name)
        document["current"] = name
    output.report(as_json, "Using", "context", name)


@command.command(epilog=examples("router context show", "router context show prod --json"))
@click.argument("name", required=False, shell_complete=complete_contexts)
@as_json
def show(name: str | None, as_json: bool) -> None:
    """Print the context NAME, or the one in use; secrets are shown as ***."""
    found = contexts.load(_file())
    chosen = name or os.environ.get("ROUTER_CONTEXT") or found.current
    context = {"name": chosen}
    context |= (
        {"server": "the data folder"} if chosen == contexts.LOCAL else _shown(found.get(chosen))
    )
    output.respond(as_json, context, *output.table((), list(context.items())))


@command.command(epilog=examples("router context remove prod"))
@click.argument("name", shell_complete=complete_contexts)
@as_json
def remove(name: str, as_json: bool) -> None:
    """Forget the context NAME with its credentials; if it is in use, local is from then on."""
    with contexts.changing(_file()) as document:
        contexts.Contexts(document["contexts"]).get(name)
        del document["contexts"][name]
        if document["current"] == name:
            document["current"] = contexts.LOCAL
    output.report(as_json, "Removed", "context", name)


def _made(server: str, given: dict[str, str | None]) -> contexts.Context:
    user = given["user"] or ""
    if given["token_file"] and (user or given["password_file"]):
        raise click.UsageError("--token-file does not go with --user.")
    if given["password_file"] and not user:
        raise click.UsageError("--password-file goes with --user.")
    files = {
        name: str(Path(text).expanduser().absolute())
        for name in ("password_file", "token_file", "ca")
        if (text := given[name])
    }
    for name in ("password_file", "token_file"):
        if name in files:
            contexts.secret(Path(files[name]))
    if "ca" in files and not Path(files["ca"]).is_file():
        raise SettingError(f"{files['ca']}: there is no such file")
    entered = password() if user and "password_file" not in files else ""
    namespace = contexts.check_namespace(given["namespace"] or "")
    return contexts.Context(server, user, entered, namespace=namespace, **files)


def _shown(one: contexts.Context) -> dict[str, str]:
    values = {found.name: getattr(one, found.name) for found in fields(one)}
    return {name: MASK if name in SECRET else text for name, text in values.items() if text}


def _token(one: contexts.Context) -> str:
    return "a token" if one.token_file else ""


def _file() -> Path:
    return contexts.path(os.environ)
