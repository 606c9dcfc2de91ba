"""Changes of topics' access lists: by the topic's owner and administrators."""

from __future__ import annotations

from router.access.owners import TopicRights
from router.access.permissions import Right
from router.errors import ForbiddenError, TopicNotFoundError
from router.model import Principal, TopicName
from router.services.manage import Topics
from router.services.rights import Rights, listing
from router.web.access.gate import Access


class AccessLists:
    """The lists of all topics, for those who may see and change them."""

    def __init__(self, access: Access, topics: Topics, rights: Rights) -> None:
        self._access = access
        self._topics = topics
        self._rights = rights

    def rights(self, principal: Principal, topic: TopicName) -> TopicRights:
        """Return owner and lists of a topic; raise ForbiddenError, TopicNotFoundError."""
        self._access.demand(principal, topic, Right.VIEW)
        self._demand_topic(topic)
        return self._rights.read(topic)

    def all(self) -> dict[str, TopicRights]:
        """Return owners and lists of all topics that have any, by full name."""
        return self._rights.all()

    def may_change(self, principal: Principal, topic: TopicName, rights: TopicRights) -> bool:
        """Return whether `change` would let the principal change lists that are these now."""
        try:
            self._access.demand(principal, topic, Right.CREATE)
            self._access.demand_owner(principal, rights)
        except ForbiddenError:
            return False
        return True

    def change(
        self, principal: Principal, topic: TopicName, name: str, *, reader: bool, listed: bool
    ) -> None:
        """Put a name on a list, or take it off; raise ForbiddenError, TopicNotFoundError."""
        self._access.demand(principal, topic, Right.CREATE)
        self._demand_topic(topic)
        change = listing(name, reader=reader, listed=listed)

        def edit(rights: TopicRights) -> TopicRights:
            # Of what is written over: the topic may have got another owner meanwhile.
            self._access.demand_owner(principal, rights)
            return change(rights)

        self._rights.change(topic, edit)

    def _demand_topic(self, topic: TopicName) -> None:
        if not self._topics.exists(topic):
            raise TopicNotFoundError(f"[{topic.local}]")
