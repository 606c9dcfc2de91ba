"""What the authorizer decides; how the shells ask it is tested with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.access.authorizer import NO_OWNER, Authorizer, TopicRights, requires_authentication
from router.access.permissions import Right
from router.errors import AccessDeniedError, ForbiddenError
from router.model import Principal, TopicName
from router.settings import load
from tests.processes import ManualClock

ANNA, BERT, KEY = Principal("anna"), Principal("bert"), Principal("admin", key=True, admin=True)
ORDERS, PART = TopicName.parse("orders"), TopicName.parse("orders-partition-0")


class Topics:
    """Rights of topics, cached as they were and read as they are."""

    def __init__(self) -> None:
        self.before: dict[str, TopicRights] = {}
        self.now: dict[str, TopicRights] = {}

    def cached(self, topic: TopicName, /) -> TopicRights:
        return self.before.get(topic.local, NO_OWNER)

    def read(self, topic: TopicName, /) -> TopicRights:
        return self.now.get(topic.local, NO_OWNER)


def authorizer(
    folder: Path, permissions: str | None = None, *, whole_topics: bool = False, **more: str
) -> tuple[Authorizer, Topics]:
    (folder / "secret").write_bytes(b"s" * 32)
    given = {name.replace("_", ".", 1): text for name, text in more.items()}
    given["auth.token_secret_file"] = str(folder / "secret")
    if permissions is not None:
        (folder / "permissions").write_text(permissions)
        given["auth.permissions"] = str(folder / "permissions")
    topics, loaded = Topics(), load(None, {}, given)
    assert requires_authentication(loaded)
    return Authorizer(loaded, topics, ManualClock(), whole_topics=whole_topics), topics


def test_partition_needs_the_rights_on_its_topic_too(tmp_path: Path) -> None:
    found, _ = authorizer(tmp_path, "anna orders* publish\nbert orders publish\n")
    for topic in (ORDERS, PART):
        found.authorize(ANNA, topic, Right.PUBLISH)
    found.authorize(BERT, ORDERS, Right.PUBLISH)
    with pytest.raises(ForbiddenError, match="no right to publish orders-partition-0"):
        found.authorize(BERT, PART, Right.PUBLISH)


def test_whole_topic_decides_where_partitions_are_opened_by_name(tmp_path: Path) -> None:
    permissions = "anna orders-partition-0 publish\nbert orders publish\n"
    found, _ = authorizer(tmp_path, permissions, whole_topics=True)
    found.authorize(BERT, PART, Right.PUBLISH)
    with pytest.raises(ForbiddenError, match=r"no right to publish orders\."):
        found.authorize(ANNA, PART, Right.PUBLISH)


@pytest.mark.parametrize("whole_topics", [False, True])
def test_owner_of_each_name_counts(tmp_path: Path, whole_topics: bool) -> None:
    found, topics = authorizer(tmp_path, whole_topics=whole_topics)
    topics.before["orders"] = TopicRights(owner="anna", readers=frozenset({"bert"}))
    for topic in (ORDERS, PART):
        found.authorize(ANNA, topic, Right.PUBLISH)
        found.authorize(BERT, topic, Right.SUBSCRIBE)
        found.authorize(BERT, topic, Right.VIEW)
        with pytest.raises(AccessDeniedError, match="bert"):
            found.authorize(BERT, topic, Right.PUBLISH)
        found.authorize(KEY, topic, Right.PUBLISH)


def test_deletion_asks_for_the_owner_as_it_is_now(tmp_path: Path) -> None:
    found, topics = authorizer(tmp_path)
    topics.before["orders"] = TopicRights(owner="anna")
    topics.now["orders"] = TopicRights(owner="bert")
    for right in (Right.DELETE, Right.MANAGE):
        found.authorize(BERT, ORDERS, right)
        with pytest.raises(AccessDeniedError):
            found.authorize(ANNA, ORDERS, right)


def test_administrators_count_as_owners(tmp_path: Path) -> None:
    found, topics = authorizer(tmp_path, "ops * manage\n* * publish subscribe\n")
    rights = topics.now["orders"] = TopicRights(owner="anna")
    found.authorize_owner(Principal("ops"), rights)
    found.authorize(Principal("ops"), ORDERS, Right.DELETE)
    with pytest.raises(AccessDeniedError):
        found.authorize_owner(BERT, rights)


def test_changed_list_leaves_the_other_one_as_it_was() -> None:
    both = TopicRights(owner="anna", readers=frozenset({"a"}), writers=frozenset({"b"}))
    assert both.with_listed("c", reader=True, listed=True).readers == {"a", "c"}
    assert both.with_listed("b", reader=False, listed=False).writers == frozenset()
    assert both.with_listed("c", reader=True, listed=True).writers == {"b"}
    assert both.with_listed("x", reader=False, listed=False) == both
