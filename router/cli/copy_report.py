"""What a run of `router copy` is to do, and what it did: lines, document, and exit status."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.cli import status
from router.errors import RouterError
from router.services.copying.access import AccessReport
from router.services.copying.context import is_passing
from router.services.copying.groups import GroupReport
from router.services.copying.verify import Verification


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """What the options of the command ask for."""

    patterns: tuple[str, ...] = ()
    since: int | None = None
    groups: bool = True
    access: bool = True
    follow: bool = False
    until_level: bool = False
    into_existing: bool = False
    verify: str | None = None
    verify_only: bool = False
    rate: int = 0
    state: Path | None = None
    dry_run: bool = False

    @property
    def changes_nothing(self) -> bool:
        """Return whether nothing is made or written."""
        return self.dry_run or self.verify_only


@dataclass(slots=True)
class CopyReport:
    """What a run did, for its last lines, its document and its exit status."""

    source: str
    target: str
    state: str = ""
    topics: list[dict[str, Any]] = field(default_factory=list)
    messages: int = 0
    size: int = 0
    before: int = 0
    seconds: float = 0.0
    level: bool | None = None
    dry_run: bool = False
    losses: dict[str, int] = field(default_factory=dict)
    streams: list[str] = field(default_factory=list)
    groups: GroupReport | None = None
    access: AccessReport | None = None
    verification: Verification | None = None
    failures: list[str] = field(default_factory=list)
    error: RouterError | None = None

    @property
    def status(self) -> int:
        """Return the exit status."""
        if self.error is not None:
            return status.status_of(self.error) if is_passing(self.error) else status.FAILED
        if self.failures:
            return status.FAILED
        if self.verification is not None and not self.verification.ok:
            return status.DIFFERS
        return status.TRY_AGAIN if self.level is False else status.DONE

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "from": self.source,
            "to": self.target,
            "state": self.state,
            "dry_run": self.dry_run,
            "topics": self.topics,
            "streams": self.streams,
            "messages": self.messages,
            "bytes": self.size,
            "before": self.before,
            "seconds": round(self.seconds, 3),
            "level": self.level,
            "not_kept": self.losses,
            "groups": None if self.groups is None else self.groups.as_json(),
            "access": None if self.access is None else self.access.as_json(),
            "verification": None if self.verification is None else self.verification.as_json(),
            "failures": self.failures,
        }

    def lines(self) -> list[str]:
        """Return its last lines."""
        lines = []
        if self.dry_run:
            lines += [
                f"{one['name']}  {_counted(one['messages'], 'message')}, {one['does']}"
                for one in self.topics
            ]
        elif self.level is not None:
            seconds = max(self.seconds, 0.001)
            lines.append(
                f"copied {self.messages:,} messages, {self.size / 1e6:,.1f} MB, of"
                f" {_counted(len(self.topics), 'topic')} in {self.seconds:.1f} s:"
                f" {self.messages / seconds:,.0f} messages/s, {self.size / seconds / 1e6:,.1f} MB/s"
            )
            if not self.level and self.error is None:
                lines.append("stopped before everything was copied: run the same command again")
        if self.before:
            lines.append(f"copied before: {_counted(self.before, 'message')}")
        lines += [f"not kept: {count:,} {what}" for what, count in self.losses.items()]
        if self.streams:
            lines.append(f"streams, copied as topics: {', '.join(self.streams)}")
        if (found := self.groups) is not None and found.groups:
            waiting = f", {found.waiting} ahead of what is copied" if found.waiting else ""
            lines.append(f"{_counted(found.groups, 'group')}{waiting}")
        rights = self.access
        if rights is not None and (rights.copied or rights.same or rights.differs):
            lines.append(
                f"access: {rights.copied} records copied, {rights.same} the same,"
                f" {rights.differs} differ and stay as they are"
            )
        if (compared := self.verification) is not None:
            messages = sum(one.compared for one in compared.partitions)
            copied = sum(one.copied for one in compared.partitions)
            lines.append(
                f"compared: {messages:,} of {_counted(copied, 'copied message')},"
                f" {_counted(compared.groups, 'group')}:"
                f" {'all equal' if compared.ok else 'they differ'}"
            )
            lines += compared.sentences()
            if others := sum(one.others or 0 for one in compared.partitions):
                lines.append(f"the target holds besides: {_counted(others, 'message')} of others")
        return [*lines, *([f"state: {self.state}"] if self.state else [])]


def left_out(topics: int, partitions: int) -> str:
    """Return how many topics were refused and partitions failed, for the line that says level."""
    counts = {"topics": topics, "partitions": partitions}
    left = " and ".join(f"{count} of the {noun}" for noun, count in counts.items() if count)
    return f", but not {left}: see above" if left else ""


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
