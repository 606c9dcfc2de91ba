"""Owners and access lists of topics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.access.authorizer import TOPIC_RECORDS
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadRequestError,
    ConflictError,
    TopicNotFoundError,
)
from router.model import TopicName
from router.node.memory import MemoryRegistry
from router.services.rights import (
    CACHE_SECONDS,
    MAX_LISTED,
    NO_OWNER,
    Rights,
    TopicRights,
)
from router.sharing.registry import RegistryRecord
from tests.processes import ManualClock

TOPIC = TopicName.parse("t")
MINE, THEIRS = TopicRights("me", description="mine"), TopicRights("they")
names = st.text(max_size=10)


class Store:
    """Topics that exist, beside the registry; `meanwhile` runs before one is made or removed."""

    def __init__(self) -> None:
        self.topics: set[TopicName] = set()
        self.meanwhile: Callable[[], object] = lambda: None

    def exists(self) -> bool:
        return TOPIC in self.topics

    def make(self) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        made = TOPIC not in self.topics
        self.topics.add(TOPIC)
        return made

    def remove(self) -> None:
        if TOPIC not in self.topics:
            raise TopicNotFoundError
        self.topics.discard(TOPIC)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def rights(registry: MemoryRegistry, clock: ManualClock) -> Rights:
    return Rights(registry, 1, clock)


def create(rights: Rights, store: Store, wanted: TopicRights) -> bool:
    return rights.create(TOPIC, wanted, store.exists, store.make)


@given(
    st.builds(
        TopicRights,
        names,
        st.frozensets(names),
        st.frozensets(names),
        names,
        st.booleans(),
    )
)
def test_rights_survive_being_written(rights: TopicRights) -> None:
    assert TopicRights.load(RegistryRecord("t", rights.dump(), 1)) == rights


@given(owner=names, readers=st.frozensets(names), writers=st.frozensets(names), who=names)
def test_owner_and_listed_may(
    owner: str, readers: frozenset[str], writers: frozenset[str], who: str
) -> None:
    rights = TopicRights(owner, readers, writers)
    everybody = owner in {"", who}
    assert rights.may_read(who) == (everybody or (who in readers and who != ""))
    assert rights.may_publish(who) == (everybody or (who in writers and who != ""))


def test_topic_without_a_record_is_everybodys(rights: Rights) -> None:
    assert rights.read(TOPIC) == rights.cached(TOPIC) == NO_OWNER
    assert rights.all() == {}


def test_created_topic_has_its_rights(rights: Rights, store: Store) -> None:
    rights.cached(TOPIC)
    assert create(rights, store, MINE)
    assert rights.read(TOPIC) == rights.cached(TOPIC) == MINE
    assert rights.all() == {str(TOPIC): MINE}


def test_topic_that_exists_keeps_its_rights(rights: Rights, store: Store) -> None:
    create(rights, store, MINE)
    assert not create(rights, store, THEIRS)
    assert rights.read(TOPIC) == MINE


def test_topic_that_exists_without_an_owner_gets_none(rights: Rights, store: Store) -> None:
    store.make()
    assert not create(rights, store, MINE)
    assert rights.read(TOPIC) == NO_OWNER


def test_topic_is_at_no_time_without_its_owner(
    rights: Rights, store: Store, registry: MemoryRegistry
) -> None:
    seen: list[TopicRights] = []
    store.meanwhile = lambda: seen.append(rights.read(TOPIC))
    create(rights, store, MINE)
    assert seen == [MINE]


def test_of_two_who_create_it_the_one_who_made_it_owns_it(rights: Rights, store: Store) -> None:
    store.meanwhile = partial(create, rights, store, THEIRS)
    assert not create(rights, store, MINE)
    assert rights.read(TOPIC) == THEIRS


def test_owner_is_who_made_it_even_if_another_wrote_first(
    rights: Rights, store: Store, registry: MemoryRegistry
) -> None:
    store.meanwhile = lambda: registry.put(TOPIC_RECORDS, str(TOPIC), THEIRS.dump(), None, 1)
    assert create(rights, store, MINE)
    assert rights.read(TOPIC) == MINE


def test_second_creator_cannot_overwrite_who_was_faster(
    rights: Rights, store: Store, clock: ManualClock
) -> None:
    def too_late() -> bool:
        # Between the look at the record and the look at the topic, somebody did all of it.
        was = store.exists()
        create(rights, store, THEIRS)
        return was

    assert not rights.create(TOPIC, MINE, too_late, store.make)
    assert rights.read(TOPIC) == THEIRS


def test_who_did_not_make_it_does_not_own_it(rights: Rights, store: Store) -> None:
    def first_message() -> None:
        store.make()
        rights.begin(TOPIC)

    def too_late() -> bool:
        was = store.exists()
        first_message()
        return was

    assert not rights.create(TOPIC, MINE, too_late, store.make)
    assert rights.read(TOPIC) == NO_OWNER


def test_topic_that_is_refused_leaves_no_rights(rights: Rights, store: Store) -> None:
    def refuse() -> bool:
        raise BadRequestError

    with pytest.raises(BadRequestError):
        rights.create(TOPIC, MINE, store.exists, refuse)
    assert rights.all() == {}


def test_topic_of_which_nobody_knows_whether_it_was_made_keeps_its_owner(
    rights: Rights, store: Store
) -> None:
    def lost() -> bool:
        store.make()
        raise BackendTimeoutError

    with pytest.raises(BackendTimeoutError):
        rights.create(TOPIC, MINE, store.exists, lost)
    assert rights.read(TOPIC) == MINE


def test_topic_made_anonymously_is_not_whose_record_came_meanwhile(
    rights: Rights, store: Store, registry: MemoryRegistry
) -> None:
    store.meanwhile = lambda: registry.put(TOPIC_RECORDS, str(TOPIC), THEIRS.dump(), 0, 1)
    assert create(rights, store, NO_OWNER)
    assert rights.read(TOPIC) == NO_OWNER


@pytest.mark.parametrize("wanted", [NO_OWNER, THEIRS])
def test_new_topic_inherits_nothing(
    rights: Rights, store: Store, registry: MemoryRegistry, wanted: TopicRights
) -> None:
    registry.put(TOPIC_RECORDS, str(TOPIC), MINE.dump(), 0, 1)
    assert create(rights, store, wanted)
    assert rights.read(TOPIC) == wanted


def test_topic_that_nobody_asked_for_inherits_nothing(
    rights: Rights, registry: MemoryRegistry
) -> None:
    registry.put(TOPIC_RECORDS, str(TOPIC), MINE.dump(), 0, 1)
    assert rights.cached(TOPIC) == MINE
    rights.begin(TOPIC)
    assert rights.cached(TOPIC) == NO_OWNER


def test_deleted_topic_leaves_no_rights(rights: Rights, store: Store) -> None:
    create(rights, store, MINE)
    rights.delete(TOPIC, store.remove)
    assert rights.cached(TOPIC) == NO_OWNER
    assert rights.all() == {}


def test_deleting_what_is_gone_removes_its_rights(
    rights: Rights, store: Store, registry: MemoryRegistry
) -> None:
    registry.put(TOPIC_RECORDS, str(TOPIC), MINE.dump(), 0, 1)
    with pytest.raises(TopicNotFoundError):
        rights.delete(TOPIC, store.remove)
    assert rights.all() == {}


def test_topic_that_cannot_be_deleted_keeps_its_rights(rights: Rights, store: Store) -> None:
    create(rights, store, MINE)

    def fail() -> None:
        raise BackendUnavailableError

    with pytest.raises(BackendUnavailableError):
        rights.delete(TOPIC, fail)
    assert rights.read(TOPIC) == MINE


def test_topic_made_anew_while_the_old_one_goes_keeps_its_owner(
    rights: Rights, store: Store
) -> None:
    create(rights, store, MINE)
    store.meanwhile = partial(create, rights, store, THEIRS)
    rights.delete(TOPIC, store.remove)
    assert rights.read(TOPIC) == THEIRS


def test_registry_that_fails_after_the_deletion_does_not_undo_it(
    rights: Rights, store: Store, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(rights, store, MINE)

    def fail(*_: object) -> bool:
        raise BackendUnavailableError

    monkeypatch.setattr(registry, "delete", fail)
    rights.delete(TOPIC, store.remove)
    rights.begin(TOPIC)
    monkeypatch.undo()
    assert create(rights, store, THEIRS)
    assert rights.read(TOPIC) == THEIRS


def test_change_counts_here_at_once_and_elsewhere_soon(
    rights: Rights, registry: MemoryRegistry, clock: ManualClock
) -> None:
    elsewhere = Rights(registry, 1, clock)
    assert rights.cached(TOPIC) == elsewhere.cached(TOPIC) == NO_OWNER
    rights.change(TOPIC, listed_as("k", reader=True, listed=True))
    rights.change(TOPIC, listed_as("w", reader=False, listed=True))
    now = TopicRights(readers=frozenset({"k"}), writers=frozenset({"w"}))
    assert rights.cached(TOPIC) == now
    assert elsewhere.cached(TOPIC) == NO_OWNER
    clock.advance(CACHE_SECONDS)
    assert elsewhere.cached(TOPIC) == now
    rights.change(TOPIC, listed_as("k", reader=True, listed=False))
    rights.change(TOPIC, listed_as("w", reader=False, listed=False))
    assert rights.cached(TOPIC) == NO_OWNER


def test_change_of_nothing_writes_nothing(rights: Rights, registry: MemoryRegistry) -> None:
    rights.change(TOPIC, listed_as("k", reader=True, listed=False))
    assert registry.list(TOPIC_RECORDS, 1) == []


def listed_as(name: str, *, reader: bool, listed: bool) -> Callable[[TopicRights], TopicRights]:
    """Return a change of one list."""
    return lambda rights: rights.with_listed(name, reader=reader, listed=listed)


def test_two_changes_at_once_both_count(rights: Rights, registry: MemoryRegistry) -> None:
    raced: list[str] = []

    def edit(before: TopicRights) -> TopicRights:
        if not raced:
            raced.append("other")
            rights.change(TOPIC, listed_as("other", reader=True, listed=True))
        return before.with_listed("mine", reader=True, listed=True)

    rights.change(TOPIC, edit)
    assert rights.read(TOPIC).readers == {"other", "mine"}


def test_change_that_always_conflicts_says_so(rights: Rights) -> None:
    def edit(before: TopicRights) -> TopicRights:
        rights.change(TOPIC, listed_as(f"other{len(before.readers)}", reader=True, listed=True))
        return before.with_listed("mine", reader=True, listed=True)

    with pytest.raises(ConflictError):
        rights.change(TOPIC, edit)


def test_lists_are_bounded(rights: Rights) -> None:
    many = frozenset(map(str, range(MAX_LISTED)))
    rights.change(TOPIC, lambda _: TopicRights(readers=many))
    with pytest.raises(BadRequestError, match=str(MAX_LISTED)):
        rights.change(TOPIC, listed_as("k", reader=True, listed=True))
