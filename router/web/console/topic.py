"""The page of one topic: publishing, its messages, its groups, what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
import structlog
from flask import Response, request

from router.errors import BadRequestError, NotAllowedError, NotSupportedError
from router.errors.quoting import quoted
from router.model import Principal, TopicName, TopicStats
from router.model.policies import CLEANUP_POLICIES, Policies
from router.services import compaction
from router.services.groups import TopicGroup, grouped
from router.services.manage import MAX_PARTITIONS
from router.settings.parsing import duration, size
from router.web.access import Right
from router.web.console import charts, commands, shown
from router.web.console.context import PageContext, PageViews
from router.web.console.fields import Fields
from router.web.console.masking import PROPERTY
from router.web.console.masking import check as check_mask
from router.web.console.message_tab import NOT_AVAILABLE, VIEWS, MessageTab
from router.web.console.pages import action, page
from router.web.console.publish_tab import FORMATS, PublishTab
from router.web.console.selection import SELECTION
from router.web.openapi.description import choice, number, one_of
from router.web.requests import CHANGES_NOTHING, Query

TABS: Final = ("publish", "messages", "groups", "settings")
DEFAULT: Final = "default"
ALL: Final = "keys and values"
"""What is masked without a property that says it."""
FOREVER: Final = "forever"
MAX_MS: Final = 2**53
CLEANUPS: Final = {
    "delete": "Old messages are deleted.",
    "compact": "The newest message of each key is kept; older ones are deleted.",
    "compact,delete": "The newest message of each key is kept until it is old.",
}
"""What each cleanup policy does."""
_RIGHTS: Final = (Right.PUBLISH, Right.SUBSCRIBE, Right.BROWSE, Right.MANAGE, Right.DELETE)
_EXPECTED: Final = f"expected {DEFAULT}, {FOREVER}, or"

_log = structlog.get_logger(__name__)


class TopicPageViews(PageViews):
    """The views of `/console/topics/<topic>`."""

    def __init__(self, context: PageContext, publish: PublishTab, settings: SettingsTab) -> None:
        super().__init__(context)
        self._messages = MessageTab(
            context, self._services.reading, self._services.offsets, self._services.histories.now_ms
        )
        self._publish, self._settings = publish, settings

    @page(
        "GET /console/topics/<topic>",
        choice("tab", TABS, "Which tab."),
        *SELECTION,
        choice("view", VIEWS, "How values are shown."),
        number("stored", "How many messages were stored, which the page says."),
        choice("with", FORMATS, "Which format is chosen."),
    )
    def topic(self, topic: str) -> Response:
        """Answer one of the tabs of a topic's page."""
        principal, name = self._context.authorized(topic, Right.VIEW)
        query = Query(request.environ)
        tab = query.choice("tab", TABS, TABS[0])
        query.choice("view", VIEWS, VIEWS[0])  # refused on any tab, if there is no such one
        data = {
            "topic": name.local,
            "tab": tab,
            "tabs": TABS,
            "may": {right.value: self._context.may(principal, name, right) for right in _RIGHTS},
        }
        stats = self._stats(name)
        data |= self._charts(name, stats)
        if tab == "publish":
            data |= self._publish.data(name, query)
        elif tab == "messages":
            data |= self._messages.data(principal, name, stats, query)
        elif tab == "groups":
            data |= _groups(principal, name, stats)
        else:
            data |= self._settings.data(principal, name, stats)
        status = 400 if data.get("error") else 200
        return self._context.pages.answer(f"topic_{tab}.html", data, status)

    def _stats(self, name: TopicName) -> TopicStats | None:
        """Return what the store knows of a topic; raise TopicNotFoundError."""
        try:
            return self._services.topics.described(name)
        except (NotSupportedError, NotAllowedError):
            self._services.reading.partitions(name)
            return None

    def _charts(self, name: TopicName, stats: TopicStats | None) -> dict[str, Any]:
        """Return the charts of what a topic holds, which is noted."""
        now = self._services.histories.now_ms()
        if stats is None:
            return {"charts": [], "histories": {}, "now": now}
        samples = self._services.histories.note_topic(stats)
        return {
            "charts": [charts.chart(kind, samples, now) for kind in ("rate", "lag")],
            "histories": {name.local: charts.series(samples)},
            "now": now,
        }


def _groups(principal: Principal, name: TopicName, stats: TopicStats | None) -> dict[str, Any]:
    url = commands.url("topics", name.local, "groups")
    found: list[TopicGroup] = [] if stats is None else grouped(stats.subscriptions)
    return {
        "groups": [
            {
                "group": group.name,
                "lag": group.backlog,
                "members": group.consumers,
                "last_used": group.last_used_ms or None,
            }
            for group in found
            if group.durable
        ],
        "note": NOT_AVAILABLE if stats is None else "",
        "commands": [commands.curl(principal, url), commands.router("groups", "list", name.local)],
    }


class SettingsTab(PageViews):
    """What the tab shows, and what its form does."""

    def data(
        self, principal: Principal, name: TopicName, stats: TopicStats | None
    ) -> dict[str, Any]:
        """Return the data of the page."""
        url = commands.url("topics", name.local)
        able = self._services.topics.capabilities()
        policies = Policies() if stats is None else stats.info.policies
        partitions = 1 if stats is None else max(1, stats.info.partitions)
        plain = "" if partitions > 1 else "It was made without partitions, and gets none."
        may = "" if self._context.may(principal, name, Right.MANAGE) else "You may not manage it."
        return {
            "rows": {} if stats is None else _rows(name, stats),
            "note": NOT_AVAILABLE if stats is None else "",
            "retention": write_time(policies.retention_ms),
            "retention_size": write_size(policies.retention_bytes),
            "partitions": partitions,
            "max_partitions": MAX_PARTITIONS,
            "cleanup": compaction.policy_of(policies),
            "cleanups": CLEANUPS,
            "mask": "" if stats is None else stats.info.properties.get(PROPERTY, ""),
            "compaction": self._last_compaction(name),
            "cannot": {
                "grow": may or able.grow or plain,
                "retention": may or able.retention,
                "compaction": may or self._services.compaction.unavailable_reason,
                "mask": may or self._services.masks.unavailable_reason,
                "delete": able.topics,
            },
            "commands": [
                commands.curl(principal, url),
                commands.curl(principal, url, "-X", "DELETE"),
                commands.router("topics", "delete", name.local),
                *creating(principal, name, partitions, policies),
            ],
        }

    @action(
        "POST /console/topics/<topic>/settings",
        optional=("partitions", "retention", "retention_size", "cleanup", "mask", "confirm"),
        kinds={"cleanup": one_of(CLEANUP_POLICIES)},
    )
    def change(self, topic: str) -> Response:
        """Say what a form would change; with `confirm`, change it."""
        principal, name = self._context.authorized(topic, Right.MANAGE)
        fields, info = Fields(request.environ), self._services.topics.described(name).info
        partitions = fields.number("partitions")
        has = max(1, info.partitions)
        if partitions is not None and not has <= partitions <= MAX_PARTITIONS:
            raise BadRequestError(
                f"partitions: expected {has} to {MAX_PARTITIONS}, not {partitions}."
            )
        kept = info.policies.retention_ms, info.policies.retention_bytes
        retention = (
            read_time("retention", fields.text("retention", write_time(kept[0]))),
            read_size("retention_size", fields.text("retention_size", write_size(kept[1]))),
        )
        policy = compaction.policy_of(info.policies)
        cleanup = compaction.check(fields.text("cleanup", policy))
        changes = _changes((has, *kept), (partitions or has, *retention))
        if cleanup != policy:
            changes.append(f"Cleanup policy: {policy} becomes {cleanup}. {CLEANUPS[cleanup]}")
        masked = info.properties.get(PROPERTY, "")
        mask = check_mask(fields.text("mask", masked))
        if mask != masked:
            changes.append(f"Masked when browsing: {masked or ALL} becomes {mask or ALL}.")
        confirmed = bool(fields.text("confirm", ""))
        if confirmed and mask != masked:
            self._services.masks.set(name, mask)
        if confirmed and cleanup != policy:
            self._services.compaction.set_policy(name, cleanup)
        if confirmed and retention != kept:
            self._services.topics.set_retention(name, *retention)
        if confirmed and partitions is not None and partitions > has:
            self._services.topics.grow(name, partitions)
        form = {
            "partitions": str(partitions or has),
            "retention": write_time(retention[0]),
            "retention_size": write_size(retention[1]),
            "cleanup": cleanup,
            "mask": mask,
        }
        data = {
            "topic": name.local,
            "changes": changes,
            "changed": confirmed,
            "form": form,
            "commands": _commands(principal, name, form),
        }
        if not confirmed:
            request.environ[CHANGES_NOTHING] = True
            return self._context.pages.answer("topic_change.html", data)
        _log.info("topic-changed", topic=str(name), changes=changes, user=principal.name)
        path = commands.path("console", "topics", name.local)
        return self._context.pages.done(data, path, tab="settings")

    @action("POST /console/topics/<topic>/compact", fails=("conflict",))
    def compact(self, topic: str) -> Response:
        """Begin to compact a topic."""
        principal, name = self._context.authorized(topic, Right.MANAGE)
        self._services.compaction.begin(name)
        _log.info("topic-compaction", topic=str(name), user=principal.name)
        url = commands.url("console", "topics", name.local, "compact")
        data = {
            "topic": name.local,
            "compaction": self._last_compaction(name),
            "commands": [commands.curl(principal, f"{url}?format=json", "-X", "POST")],
        }
        path = commands.path("console", "topics", name.local)
        return self._context.pages.done(data, path, tab="settings")

    def _last_compaction(self, name: TopicName) -> dict[str, str] | None:
        """Return how the last compaction went, None: the store does not say."""
        if self._services.compaction.unavailable_reason:
            return None
        return self._services.compaction.last(name)._asdict()


def read_time(name: str, written: str) -> int | None:
    """Return a retention in milliseconds, None: as settings say, -1: without bound."""
    return _read(
        name, written, lambda word: round(duration(word) * 1000), "a time such as 12h or 7d"
    )


def write_time(ms: int | None) -> str:
    """Return a retention in milliseconds as `read_time` takes it."""
    if ms is None or ms < 0:
        return DEFAULT if ms is None else FOREVER
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms and ms % length == 0:
            return f"{ms // length}{unit}"
    return f"{ms}ms"


def read_size(name: str, written: str) -> int | None:
    """Return a retention in bytes, None: as settings say, -1: without bound."""
    return _read(name, written, size, "bytes such as 64K or 1G")


def _read(name: str, written: str, parse: Callable[[str], int], example: str) -> int | None:
    word = written.strip().lower()
    if word in {"", DEFAULT}:
        return None
    if word == FOREVER:
        return -1
    try:
        found = parse(word)
    except (ValueError, OverflowError):
        found = 0
    if not 0 < found <= MAX_MS:
        raise BadRequestError(f"{name}: {_EXPECTED} {example}, not {quoted(written, 40)}.")
    return found


def write_size(count: int | None) -> str:
    """Return a retention in bytes as `read_size` takes it."""
    if count is None or count < 0:
        return DEFAULT if count is None else FOREVER
    for unit, length in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count and count % length == 0:
            return f"{count // length}{unit}"
    return str(count)


def _rows(name: TopicName, stats: TopicStats) -> dict[str, Any]:
    policies = stats.info.policies
    return {
        "Full name": str(name),
        "Partitions": max(1, stats.info.partitions),
        "Messages": sum(part.messages for part in stats.partitions),
        "Size": shown.size(sum(part.bytes for part in stats.partitions)),
        "Retention": write_time(policies.retention_ms),
        "Retention by size": write_size(policies.retention_bytes),
        "Cleanup policy": compaction.policy_of(policies),
        "Backlog quota": write_size(policies.backlog_bytes),
        "Masked when browsing": stats.info.properties.get(PROPERTY) or ALL,
        "Created": shown.at(stats.info.created_ms) if stats.info.created_ms else "unknown",
    }


def _changes(
    before: tuple[int, int | None, int | None], after: tuple[int, int | None, int | None]
) -> list[str]:
    found = []
    if before[0] != after[0]:
        found.append(
            f"Partitions: {before[0]} become {after[0]}. They are never fewer again, and keys may"
            " go to another partition than before: their order holds from then on."
        )
    if before[1] != after[1]:
        found.append(
            f"Retention: {write_time(before[1])} becomes {write_time(after[1])}."
            " Messages that are older are deleted, soon and for good."
        )
    if before[2] != after[2]:
        found.append(
            f"Retention by size, of each partition: {write_size(before[2])} becomes"
            f" {write_size(after[2])}. Older messages beyond it are deleted, soon and for good."
        )
    return found


def _commands(principal: Principal, name: TopicName, form: dict[str, str]) -> list[str]:
    url = commands.url("console", "topics", name.local, "settings")
    words = [word for field, value in form.items() for word in ("-d", f"{field}={value}")]
    return [commands.curl(principal, f"{url}?format=json", *words, "-d", "confirm=yes")]


def creating(
    principal: Principal, name: TopicName, partitions: int, policies: Policies
) -> list[str]:
    """Return the lines that create a topic like this; `partitions` may be 0, for the default."""
    body: dict[str, str | int] = {"topicName": name.local}
    body |= {"partitionCount": partitions} if partitions else {}
    retention_ms, cleanup = policies.retention_ms, policies.cleanup_policy
    body |= {} if retention_ms is None else {"retentionMs": retention_ms}
    body |= {} if cleanup is None else {"cleanupPolicy": cleanup}
    url = commands.url("topics", "create")
    kind = ("-H", "Content-Type: application/json")
    lines = [commands.curl(principal, url, *kind, "-d", orjson.dumps(body).decode())]
    if retention_ms is None:
        options = ["--partitions", str(partitions)] if partitions else []
        options += [] if cleanup is None else ["--cleanup-policy", cleanup]
        lines.append(commands.router("topics", "create", name.local, *options))
    return lines
