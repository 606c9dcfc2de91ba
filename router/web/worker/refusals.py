"""Requests that are refused before the application sees them, and what is said of them."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Final

# Of RFC 9112, 3.2: none or several hosts, or none that is a host, is 400. More than names and
# addresses have is nothing that a name server knows, and nothing to compare with an Origin.
_HOST: Final = re.compile(r"(?:[A-Za-z0-9._~%-]*|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{0,5})?")


class RefusedError(Exception):
    """A request that is not served: its status, and a sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


def malformed(sentence: str) -> RefusedError:
    """Return the refusal of what is not HTTP, or could be read in two ways."""
    return RefusedError(HTTPStatus.BAD_REQUEST, sentence)


def bad_host(host: str | None, version: tuple[int, int]) -> str | None:
    """Return what is wrong with a Host header, None: nothing."""
    if host is None:
        return None if version < (1, 1) else "The Host header is missing."
    return None if _HOST.fullmatch(host) else "The Host header is no host."
