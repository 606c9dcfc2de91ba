"""`router completion`: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from router.cli.options import as_json, examples
from router.cli.output import emit

VARIABLE = "_ROUTER_COMPLETE"


@click.command(
    epilog=examples(
        'eval "$(router completion bash)"                  in ~/.bashrc',
        'eval "$(router completion zsh)"                   in ~/.zshrc',
        "router completion fish > ~/.config/fish/completions/router.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@as_json
def command(shell: str, as_json: bool) -> None:
    """Print what has SHELL complete `router`, names of topics, groups and contexts included."""
    completion = get_completion_class(shell)
    assert completion is not None
    script = completion(click.Command("router"), {}, "router", VARIABLE).source()
    if as_json:
        emit({"shell": shell, "script": script})
    else:
        click.echo(script)
