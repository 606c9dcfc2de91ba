"""What each principal has of a limit, so that one of them leaves some to the others."""

from __future__ import annotations

from collections import Counter


class PrincipalShares:
    """How much of a limit is used, by the names of principals; "" is none, and has no share.

    A principal has a quarter at most once half of the limit is used: one that is alone has half.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._of: Counter[str] = Counter()

    def add(self, principal: str, amount: int) -> None:
        """Note that a principal has so much more, or less."""
        self._used += amount
        self._of[principal] += amount
        if not self._of[principal]:
            del self._of[principal]

    def is_full(self, principal: str) -> bool:
        """Return whether a principal may have no more. What is added last may go beyond."""
        if self._used >= self._limit:
            return True
        held_to_share = bool(principal) and self._used >= self._limit // 2
        return held_to_share and self._of[principal] >= self._limit // 4

    @property
    def rule(self) -> str:
        """The limit and the share, as a part of a sentence."""
        return f"at most {self._limit}, of one principal {self._limit // 4} once half are used"
