"""A file of permissions in the form of AAF, for migration: lines `user permission`.

    m12345@x.org   org.onap.dmaap.mr.topic|:topic.org.onap.dmaap.mr.events|pub
    m12345@x.org   org.onap.dmaap.mr.topic|:topic.org.onap.dmaap.mr.*|sub
    dashboard      org.onap.dmaap.mr.topic|*|view
    ops            org.onap.dmaap.mr|create
    ops            org.onap.dmaap.mr|destroy

A permission is `type|instance|action`. The original Message Router asks for
`<ns>.topic|:topic.<name>|pub`, `|sub` or `|view`. The namespace of a topic is its name up to the
last dot if it begins with `org.onap`, and otherwise that of the installation (`org.onap.dmaap.mr`
as shipped). This file is read the same way. `*` stands for any characters, also in the type and the
action. A permission whose instance names one topic, without a `*`, applies to that topic whatever
its type is. Creating and deleting are `<ns>|create` and `<ns>|destroy`, which may also be written
as in AAF: `org.onap.dmaap.mr.topicFactory|:org.onap.dmaap.mr.topic:<ns>|create`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.access.permissions import Right, Rule, compile_pattern

DEFAULT_NAMESPACE: Final = "org.onap.dmaap.mr"
ONAP_PREFIX: Final = "org.onap"
_TOPIC: Final = ":topic."
_ACTIONS: Final = {
    "pub": frozenset({Right.PUBLISH}),
    "sub": frozenset({Right.SUBSCRIBE}),
    "view": frozenset({Right.VIEW}),
    "create": frozenset({Right.CREATE}),
    "destroy": frozenset({Right.DELETE}),
    "manage": frozenset({Right.MANAGE}),
}
# The rights that a permission on a namespace may grant, rather than one on topics in it.
_NAMESPACE_RIGHTS: Final = frozenset({Right.CREATE, Right.DELETE, Right.MANAGE, Right.VIEW})
_WORD: Final = re.compile(r"[A-Za-z0-9._:@*+-]+")
_ANY: Final = re.compile(".*")


@dataclass(frozen=True, slots=True)
class AafRule(Rule):
    """One line; `namespaces` is None if the topic's name alone decides."""

    namespaces: re.Pattern[str] | None = None

    def covers(self, topic: str) -> bool:
        """Return whether the permission applies to this topic."""
        if self.topics.fullmatch(topic) is None:
            return False
        return self.namespaces is None or self.namespaces.fullmatch(namespace(topic)) is not None

    def covers_all(self) -> bool:
        """Return whether the permission applies to every possible topic."""
        anywhere = self.namespaces is None or self.namespaces.pattern == ".*"
        return anywhere and self.topics.pattern == ".*"


def namespace(topic: str) -> str:
    """Return the AAF namespace of a topic, as the original derives it."""
    own, dot, _ = topic.rpartition(".")
    return own if dot and topic.startswith(ONAP_PREFIX) else DEFAULT_NAMESPACE


def parse(text: str) -> Sequence[Rule]:
    """Return the rules of a file; raise ValueError naming an unusable line."""
    rules = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].split()
        if not line:
            continue
        parts = line[1].split("|") if len(line) == 2 else []
        if len(parts) not in {2, 3} or not all(_WORD.fullmatch(part) for part in parts):
            raise ValueError(
                f"line {number}: expected `user type|instance|action` or `user namespace|create`"
            )
        rights = _rights(parts[-1], number)
        rules.append(_rule(line[0], parts, rights, number))
    return rules


def _rule(user: str, parts: Sequence[str], rights: frozenset[Right], number: int) -> AafRule:
    written = "|".join(parts)
    if len(parts) == 2:
        granted = _namespace_rights(rights, number)
        return AafRule(user, _ANY, granted, written, compile_pattern(parts[0]))
    kind, instance, _ = parts
    if kind == "*" and instance == "*":
        return AafRule(user, _ANY, rights, written)
    if kind.endswith(".topicFactory"):
        granted = _namespace_rights(rights, number)
        return AafRule(user, _ANY, granted, written, compile_pattern(instance.rpartition(":")[2]))
    if not (kind.endswith(".topic") or kind == "*"):
        raise ValueError(f"line {number}: {kind!r} is not a type of topics: expected <ns>.topic")
    if not (instance == "*" or instance.startswith(_TOPIC)):
        raise ValueError(f"line {number}: {instance!r}: expected :topic.<name> or *")
    name = instance.removeprefix(_TOPIC)
    if "*" not in name:
        return AafRule(user, compile_pattern(name), rights, written)
    return AafRule(
        user, compile_pattern(name), rights, written, compile_pattern(kind.removesuffix(".topic"))
    )


def _namespace_rights(rights: frozenset[Right], number: int) -> frozenset[Right]:
    """Return the rights that a namespace can grant: `*` here opens no topic's messages."""
    if found := rights & _NAMESPACE_RIGHTS:
        return found
    raise ValueError(f"line {number}: a namespace has create, destroy, manage, view or *")


def _rights(action: str, number: int) -> frozenset[Right]:
    if action == "*":
        return frozenset(Right)
    try:
        return _ACTIONS[action]
    except KeyError as error:
        known = ", ".join(_ACTIONS)
        raise ValueError(
            f"line {number}: {error} is not an action; known are {known}, *"
        ) from error
