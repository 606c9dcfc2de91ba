"""Records of one registry are in the other afterwards, and none that was changed there is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.access.addresses import BLACKLIST_RECORDS
from router.access.authorizer import TOPIC_RECORDS
from router.node.memory import MemoryNode
from router.services import keys, shared_secret
from router.services.copying.access import KINDS, AccessCopy
from router.services.keys import ApiKey
from router.services.rights import TopicRights

WAIT = 1.0
OWNED = TopicRights("K1", frozenset({"K2"}), frozenset({"K1"}), "orders", False)
RECORDS = {
    (keys.KIND, "K1"): ApiKey("K1", "secret-1", "a@b", "").dump(),
    (TOPIC_RECORDS, "persistent://public/default/orders"): OWNED.dump(),
    (BLACKLIST_RECORDS, "10.0.0.1"): b"{}",
    (shared_secret.KIND, "idempotency"): b"\x00\xff" * 16,
    (shared_secret.ENDED_SESSIONS, "abc"): b"1700000000000",
}
OTHERS = {
    (keys.KIND, "K1"): ApiKey("K1", "secret-2", "a@b", "").dump(),
    (shared_secret.KIND, "idempotency"): b"\x01" * 32,
}
SOME = st.sets(st.sampled_from(sorted(RECORDS)))


def node(records: dict[tuple[str, str], bytes]) -> MemoryNode:
    made = MemoryNode(idle=1.0, empty_polls_per_minute=0)
    for (kind, name), value in records.items():
        made.registry.put(kind, name, value, 0, WAIT)
    return made


def held(of: MemoryNode) -> dict[tuple[str, str], bytes]:
    return {(k, one.name): one.value for k in KINDS for one in of.registry.list(k, WAIT)}


@given(here=SOME, there=SOME, other=st.sets(st.sampled_from(sorted(OTHERS))))
def test_records_that_are_missing_are_copied_and_others_stay(
    here: set[tuple[str, str]], there: set[tuple[str, str]], other: set[tuple[str, str]]
) -> None:
    before = {one: RECORDS[one] for one in there} | {one: OTHERS[one] for one in other}
    wanted = {one: RECORDS[one] for one in here}
    source, target = node(wanted), node(before)
    copy = AccessCopy(source, target, WAIT)
    planned = copy.copy(apply=False)
    assert held(target) == before
    done = copy.copy(apply=True)
    assert held(target) == wanted | before
    assert done == planned
    assert (done.copied, done.failures) == (len(here - there - other), [])
    assert done.same == len((here & there) - other)
    assert sorted(done.different) == sorted(f"{kind} {name}" for kind, name in here & other)
    assert copy.copy(apply=True) == done
    assert AccessCopy(source, target, WAIT).copy(apply=True).copied == 0


CHANGES = st.lists(
    st.tuples(st.booleans(), st.sampled_from(sorted(RECORDS)), st.sampled_from((b"", b"1", b"2"))),
    max_size=12,
)


@given(before=st.sets(st.sampled_from(sorted(RECORDS))), changes=CHANGES)
def test_records_follow_the_source_until_they_are_changed_at_the_target(
    before: set[tuple[str, str]], changes: list[tuple[bool, tuple[str, str], bytes]]
) -> None:
    source, target = node(dict.fromkeys(RECORDS, b"0")), node(dict.fromkeys(before, b"t"))
    copy = AccessCopy(source, target, WAIT)
    copy.copy(apply=True)
    theirs: dict[tuple[str, str], bytes | None] = dict.fromkeys(before, b"t")
    for at_source, (kind, name), value in changes:
        registry = (source if at_source else target).registry
        if value:
            registry.put(kind, name, value, None, WAIT)
        else:
            registry.delete(kind, name, WAIT)
        if not at_source and ((kind, name) not in before or value):
            theirs[kind, name] = value or None
        elif not at_source:
            del theirs[kind, name]  # nothing is known of it: it is new again
            before.discard((kind, name))
        copy.copy(apply=True)
        there, here = held(target), held(source)
        wanted = {one: theirs.get(one, here.get(one)) for one in RECORDS}
        assert there == {one: value for one, value in wanted.items() if value is not None}
        # What the source has no more is forgotten: it is the target's alone, or is new again.
        before |= {one for one, value in theirs.items() if value is not None} - here.keys()
        theirs = {one: v for one, v in theirs.items() if v is not None or one in here}
