"""The commands of the command line, each in a module that is imported when it is used.

`router serve` has 1.5 s to its first accepted request, and no command should load a server that
it does not need: so the group knows its commands by name and loads the one that is asked for.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final, cast

import click

from router.cli.options import examples
from router.errors import RouterError, SettingError

COMMANDS: Final[dict[str, str]] = {
    "serve": "router.cli.serve",
    "broker": "router.cli.broker",
    "check": "router.cli.check",
    "topics": "router.cli.topics",
    "groups": "router.cli.groups",
    "pub": "router.cli.pub",
    "sub": "router.cli.sub",
    "user": "router.cli.user",
    "token": "router.cli.token",
    "zk": "router.cli.zk",
    "migrate": "router.cli.migrate",
    "pipeline": "router.cli.pipeline",
}
EXIT_CONFIG: Final = 78


class Commands(click.Group):
    """A group whose commands are modules with a `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command."""
        if cmd_name not in COMMANDS:
            return None
        return cast(click.Command, importlib.import_module(COMMANDS[cmd_name]).command)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; the router's own failures end with a sentence, no traceback."""
        try:
            return super().invoke(ctx)
        except RouterError as error:
            click.echo(f"Error: {sentence(error)}", err=True)
            sys.exit(EXIT_CONFIG if isinstance(error, SettingError) else 1)


def sentence(error: RouterError) -> str:
    """Return what a failure says; one that only names its object is put into words."""
    said = str(error)
    return said if " " in said else f"{(error.__doc__ or '').partition('.')[0]}: {said}"


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "router serve                            start on http://127.0.0.1:3904, data in ./data",
        "router topics create orders --partitions 4",
        "echo hello | router pub orders",
        "router sub orders --from earliest",
        "router COMMAND --help                   examples of each command",
    ),
)
@click.version_option(package_name="message-router", prog_name="router")
def main() -> None:
    """Publish with POST, subscribe with GET, over a durable log."""
