"""The commands of the command line, each in a module that is imported when it is used.

`router serve` has 1.5 s to its first accepted request, and no command should load a server that
it does not need: so the group knows its commands by name and loads the one that is asked for.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from typing import Any, Final, cast

import click

from router.cli import status
from router.cli.options import examples
from router.errors import RouterError
from router.process.build import VERSION

COMMANDS: Final = {
    "serve": "Start the broker and the HTTP server, and keep them alive.",
    "broker": "Run the broker alone, for Pulsar clients.",
    "demo": "Fill a running router with topics and traffic to look at.",
    "check": "Try what `serve` needs, and read stored data.",
    "backup": "Copy a data folder while its router runs.",
    "restore": "Make a data folder of a backup.",
    "topics": "List, create, describe, delete topics.",
    "groups": "See where groups stand, move them, end them.",
    "streams": "List, add, edit, purge, remove streams of JetStream.",
    "dead-letters": "See, requeue, discard what waits in dead-letter topics.",
    "transactions": "List, describe, abort open transactions.",
    "pub": "Publish standard input.",
    "sub": "Print messages as they come.",
    "bench": "Measure publishing, reading, and the time between them.",
    "context": "Name routers elsewhere, so that commands work there.",
    "completion": "Print the completion of a shell.",
    "copy": "Copy topics, messages and groups to another store.",
    "user": "Add, remove, list the users of a file.",
    "token": "Make keys and tokens.",
    "explain": "Say what a failure's code means, and what to do.",
    "zk": "See which node holds what, in ZooKeeper.",
    "migrate": "Import from an original Message Router.",
    "pipeline": "Run declared data pipelines on Spark.",
    "kafka-messages": "Compile, inspect and compare Kafka's message definitions.",
}
"""What each command does, for `router --help`, which loads none of their modules."""
_MODULES: Final = {"completion": "connecting"}
"""Of the commands whose module has another name."""


class Commands(click.Group):
    """A group whose commands are modules with a `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command."""
        if cmd_name not in COMMANDS:
            return None
        module = _MODULES.get(cmd_name, cmd_name.replace("-", "_"))
        return cast(click.Command, importlib.import_module(f"router.cli.{module}").command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; its failures end with a sentence, no traceback, and their status."""
        _fill_closed_streams()
        try:
            return super().invoke(ctx)
        except RouterError as error:
            click.echo(f"Error: {sentence(error)}", err=True)
            sys.exit(status.status_of(error))
        except BrokenPipeError:
            # As `yes | head`: silently. What is still in the buffer must not be written at exit.
            with suppress(AttributeError, OSError, ValueError):  # it may be closed
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(status.OUTPUT_CLOSED)
        except KeyboardInterrupt:
            sys.exit(status.INTERRUPTED)


def _fill_closed_streams() -> None:
    """Have no file take the place of a standard stream that is closed, as libraries write there.

    What goes to standard error is lost then; `sys.stdout` stays None, as `sub` must not lose any.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def sentence(error: RouterError) -> str:
    """Return what a failure says; one that only names its object is put into words."""
    text = str(error)
    return text if " " in text else f"{(error.__doc__ or '').partition('.')[0]}: {text}"


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "router serve                            start on http://127.0.0.1:3904, data in ./data",
        "router topics create orders --partitions 4",
        "echo hello | router pub orders",
        "router sub orders --from earliest",
        "router context add prod --server https://router.example.org:3905 --user anna",
        "router topics list --context prod",
        "router COMMAND --help                   examples of each command",
    ),
)
@click.version_option(VERSION, prog_name="router")
def main() -> None:
    """Publish with POST, subscribe with GET, over a durable log."""
