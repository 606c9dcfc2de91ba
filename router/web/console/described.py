"""How the console's routes are described: `page` for what is shown, `action` for what forms do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from router.web.console.fields import FORM, MULTIPART
from router.web.console.formats import FORMATS
from router.web.openapi.description import (
    HTML,
    JSON,
    OBJECT,
    STORE,
    TEXT,
    TOPIC,
    Body,
    Parameter,
    Reply,
    View,
    choice,
    operation,
    shape,
)

FORMAT: Final = choice("format", FORMATS, "A page, or its data; `Accept` says it as well.")
SIGN_IN: Final = {303: Reply("For a browser without credentials: `Location` is the sign-in page.")}
FAILS: Final = (*TOPIC, *STORE, "not-allowed", "not-supported")


def page(*parameters: Parameter, fails: tuple[str, ...] = FAILS) -> Callable[[View], View]:
    """Return a decorator that describes a page with a JSON twin."""
    return operation(
        FORMAT,
        *parameters,
        answers={200: Reply("The page, or its data.", {HTML: TEXT, JSON: OBJECT}), **SIGN_IN},
        fails=fails,
    )


def action(
    *fields: str,
    optional: tuple[str, ...] = (),
    fails: tuple[str, ...] = (),
    multipart: bool = False,
) -> Callable[[View], View]:
    """Return a decorator that describes what a form with these fields does."""
    form = shape(dict.fromkeys(fields, TEXT), dict.fromkeys(optional, TEXT))
    return operation(
        FORMAT,
        body=Body({FORM: form} | ({MULTIPART: form} if multipart else {})),
        answers={
            200: Reply("What was done.", {JSON: OBJECT, HTML: TEXT}),
            303: Reply("Done; `Location` is the page that shows it."),
        },
        fails=(*FAILS, *fails),
    )
