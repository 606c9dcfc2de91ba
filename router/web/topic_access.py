"""Who makes the current request, and which topics they may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flask import request

from router.errors import ForbiddenError
from router.model import Principal, TopicInfo, TopicName
from router.services.manage import TopicManagement
from router.web.access import RequestAuthorizer, Right


@dataclass(frozen=True, slots=True)
class TopicAccess:
    """Authorizes requests for topics; `topic_name` reads a name from a path's segment."""

    access: RequestAuthorizer
    topic_name: Callable[[str], TopicName]

    def principal(self) -> Principal:
        """Return who makes this request; raise UnauthenticatedError, TooManyRequestsError."""
        return self.access.principal(request.environ)

    def authorized(self, topic: str, *rights: Right) -> tuple[Principal, TopicName]:
        """Return who makes this request, and the topic that a path names.

        Raises what `principal` raises, BadNameError, and ForbiddenError without the rights on it.
        """
        principal, name = self.principal(), self.topic_name(topic)
        for right in rights:
            self.access.authorize(principal, name, right)
        return principal, name

    def may(self, principal: Principal, topic: TopicName, right: Right) -> bool:
        """Return whether `RequestAuthorizer.authorize` would let the principal do this."""
        try:
            self.access.authorize(principal, topic, right)
        except ForbiddenError:
            return False
        return True

    def visible(
        self, principal: Principal, topics: TopicManagement, *, internal: bool = False
    ) -> list[TopicInfo]:
        """Return the topics that the principal may see, by name; see `TopicManagement.listed`."""
        home = self.topic_name("x")
        listed = topics.listed(home.tenant, home.namespace, internal=internal)
        return [i for i in listed if self.access.allows(principal, i.topic, Right.VIEW)]
