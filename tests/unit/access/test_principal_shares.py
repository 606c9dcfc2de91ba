"""Laws of the shares of principals, whatever they take and give back."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.access.principal_shares import PrincipalShares

LIMIT = 16
OWNERS = st.sampled_from(["", "a", "b", "c", "d", "e"])


def taking(shares: PrincipalShares, owner: str) -> int:
    """Return how many a principal gets until it is refused one."""
    taken = 0
    while not shares.is_full(owner):
        shares.add(owner, 1)
        taken += 1
    return taken


@given(st.lists(st.tuples(OWNERS, st.booleans()), max_size=80))
def test_a_principal_is_refused_for_its_share_or_as_all_is_used(
    steps: list[tuple[str, bool]],
) -> None:
    shares, held = PrincipalShares(LIMIT), Counter[str]()
    for owner, takes in steps:
        used = held.total()
        if not takes:
            if held[owner]:
                shares.add(owner, -1)
                held[owner] -= 1
        elif shares.is_full(owner):
            assert used == LIMIT or (owner and used >= LIMIT // 2 and held[owner] >= LIMIT // 4)
        else:
            shares.add(owner, 1)
            held[owner] += 1
        assert held.total() <= LIMIT
        assert all(held[owner] <= LIMIT // 2 for owner in held if owner)


def test_one_that_is_alone_has_half_and_two_others_a_quarter_each() -> None:
    shares = PrincipalShares(LIMIT)
    assert [taking(shares, owner) for owner in ("a", "b", "c", "d")] == [8, 4, 4, 0]


def test_without_principals_all_may_be_used() -> None:
    shares = PrincipalShares(LIMIT)
    assert taking(shares, "") == LIMIT
    assert shares.is_full("a")
