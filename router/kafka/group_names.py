"""Which Kafka group id stands for which group of a topic, as the setting `kafka.group` says.

The Kafka backend and the Kafka listener use one form, so that a group keeps its name when messages
move from one to the other.
"""

from __future__ import annotations

import re


class GroupNames:
    """Group ids in Kafka and names of groups, by a form such as `{group}` or `{group}--{topic}`."""

    def __init__(self, form: str) -> None:
        self._form = form
        pattern = re.escape(form).replace(r"\{group\}", "(?P<group>.+)")
        self._pattern = pattern.replace(r"\{topic\}", "(?P<topic>.+)")

    def id(self, name: str, topic: str) -> str:
        """Return the id of a group; `topic` is the name in Kafka."""
        before, _, behind = self._form.partition("{group}")
        return before.replace("{topic}", topic, 1) + name + behind.replace("{topic}", topic, 1)

    def name(self, group_id: str, topic: str) -> str | None:
        """Return the name of a group on a topic, by its id; None: it is none of that topic."""
        topic_pattern = self._pattern.replace("(?P<topic>.+)", re.escape(topic))
        found = re.fullmatch(topic_pattern, group_id, re.DOTALL)
        return found["group"] if found else None
