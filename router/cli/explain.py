"""`router explain`: what a failure's code means, its likely cause, and what to do."""

from __future__ import annotations

import json
from difflib import get_close_matches

import click

from router.cli.options import as_json, examples
from router.errors.catalogue import ADVICE, Explanation, explain
from router.errors.quoting import quoted


def complete_codes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the codes that begin so, for the completion of a shell."""
    del ctx, param
    return [code for code in ADVICE if code.startswith(incomplete)]


@click.command(
    epilog=examples(
        "router explain outcome-unknown",
        "router explain 3001                     what has this number in an answer's body",
        "router explain topic-held --json        for programs",
        "router explain                          all codes",
    )
)
@click.argument("code", required=False, shell_complete=complete_codes)
@as_json
def command(code: str | None, as_json: bool) -> None:
    """Explain the CODE or the number of a failure; without one, list all codes."""
    if code is None:
        found = [explain(one) for one in ADVICE]
    elif code.isdecimal():
        found = [explain(one) for one in numbered(int(code))]
    else:
        found = [explain(code)] if code in ADVICE else []
    if code is not None and not found:
        close = get_close_matches(code, ADVICE)
        hint = f" Did you mean {' or '.join(close)}?" if close else " `router explain` lists all."
        raise click.BadParameter(f"there is no code {quoted(code)}.{hint}", param_hint="CODE")
    if as_json:
        several = code is None or code.isdecimal()
        shown = [one._asdict() for one in found] if several else found[0]._asdict()
        click.echo(json.dumps(shown, indent=2))
    elif code is None:
        width = max(map(len, ADVICE))
        click.echo("\n".join(f"{one.code:{width}}  {one.sentence}" for one in found))
    else:
        click.echo("\n\n".join("\n".join(lines(one)) for one in found))


def numbered(number: int) -> list[str]:
    """Return the codes of failures with this HTTP status, `mrErrorCode` or `mrstatus`."""
    from router.web.dmaap.errors import ROUTES, TABLE  # noqa: PLC0415 - for numbers only

    rows = [*TABLE.items(), *((code, row) for (_route, code), row in ROUTES.items())]
    found = [code for code, row in rows if number in (row.status, row.code, row.mrstatus)]
    return list(dict.fromkeys(found))


def lines(found: Explanation) -> list[str]:
    """Return an explanation in lines for people."""
    return [
        f"{found.code}: {found.sentence}",
        f"Likely cause: {found.cause}",
        f"What to do:   {found.remedy}",
        f"A repeat of the request {'may help' if found.retriable else 'does not help by itself'}.",
        f"More:         {found.page}",
    ]
