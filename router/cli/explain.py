"""`router explain`: what a failure's code means, its likely cause, and what to do."""

from __future__ import annotations

import json
from difflib import get_close_matches

import click

from router.cli.options import as_json, examples
from router.errors.catalogue import ADVICE, Explanation, explain


def complete_codes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the codes that begin so, for the completion of a shell."""
    del ctx, param
    return [code for code in ADVICE if code.startswith(incomplete)]


@click.command(
    epilog=examples(
        "router explain outcome-unknown",
        "router explain topic-held --json        for programs",
        "router explain                          all codes",
    )
)
@click.argument("code", required=False, shell_complete=complete_codes)
@as_json
def command(code: str | None, as_json: bool) -> None:
    """Explain the CODE of a failure; without one, list all codes."""
    if code is None:
        found = [explain(one) for one in ADVICE]
        if as_json:
            click.echo(json.dumps([one._asdict() for one in found], indent=2))
            return
        width = max(map(len, ADVICE))
        click.echo("\n".join(f"{one.code:{width}}  {one.sentence}" for one in found))
        return
    if code not in ADVICE:
        close = get_close_matches(code, ADVICE)
        hint = f" Did you mean {' or '.join(close)}?" if close else " `router explain` lists all."
        raise click.BadParameter(f"there is no code {code!r}.{hint}", param_hint="CODE")
    found_one = explain(code)
    if as_json:
        click.echo(json.dumps(found_one._asdict(), indent=2))
        return
    click.echo("\n".join(lines(found_one)))


def lines(found: Explanation) -> list[str]:
    """Return an explanation in lines for people."""
    return [
        f"{found.code}: {found.sentence}",
        f"Likely cause: {found.cause}",
        f"What to do:   {found.remedy}",
        f"A repeat of the request {'may help' if found.retriable else 'does not help by itself'}.",
        f"More:         {found.page}",
    ]
