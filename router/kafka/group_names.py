"""Which Kafka group id stands for which group of a topic, as the setting `kafka.group` says.

The Kafka backend and the Kafka listener use one form, so that a group keeps its name when messages
move from one to the other.
"""

from __future__ import annotations


class GroupNames:
    """Group ids in Kafka and names of groups, by a form such as `{group}` or `{group}--{topic}`."""

    def __init__(self, form: str) -> None:
        self._prefix, _, self._suffix = form.partition("{group}")

    def id(self, name: str, topic: str) -> str:
        """Return the id of a group; `topic` is the name in Kafka."""
        prefix, suffix = self._around(topic)
        return prefix + name + suffix

    def name(self, group_id: str, topic: str) -> str | None:
        """Return the name of a group on a topic, by its id; None: it is none of that topic."""
        prefix, suffix = self._around(topic)
        end = len(group_id) - len(suffix)
        if len(prefix) >= end or not (group_id.startswith(prefix) and group_id.endswith(suffix)):
            return None
        return group_id[len(prefix) : end]

    def _around(self, topic: str) -> tuple[str, str]:
        """Return what stands before and behind the name in the id."""
        return self._prefix.replace("{topic}", topic, 1), self._suffix.replace("{topic}", topic, 1)
