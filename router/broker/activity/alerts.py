"""Which alerts would fire now: rules of deploy/prometheus/alerts.yaml, by what the broker recorded.

What a rule needs of other nodes, of restarts or of single processes is Prometheus' to see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from router.broker.activity.history import MINUTE_MS, ActivitySample

DISK_MARGIN: Final = 4
"""Times the reserve: less free space is nearly full."""
FILL_SECONDS: Final = 4 * 3600
SLOW_SYNC_MS: Final = 500
MAX_BACKUP_SECONDS: Final = 2 * 86_400
LONG_TRANSACTION_SECONDS: Final = 300
LARGE_LAG: Final = 100_000
MAX_REFUSED: Final = 1.0
"""Logins a second."""
MAX_ERRORS: Final = 0.05
"""Of all requests."""
PAGE: Final = "page"
TICKET: Final = "ticket"


def firing(
    gauge: Callable[[str], float], samples: Sequence[ActivitySample], now_ms: float
) -> list[dict[str, Any]]:
    """Return `name`, `severity` and `text` of the alerts; `samples` are those of the last hour."""
    found = (
        *_disk(gauge, samples),
        *_service(samples, now_ms),
        *_age(gauge, now_ms),
        *_transactions(gauge),
    )
    return [{"name": name, "severity": kind, "text": text} for name, kind, text in found]


def _disk(
    gauge: Callable[[str], float], samples: Sequence[ActivitySample]
) -> Iterator[tuple[str, str, str]]:
    free, reserve = gauge("router_disk_free_bytes"), gauge("router_disk_reserve_bytes")
    size = gauge("router_disk_size_bytes")
    if gauge("router_disk_full"):
        yield "RouterDiskFull", PAGE, "The disk is full: publishing is refused."
    elif size and free < DISK_MARGIN * reserve:
        yield "RouterDiskNearlyFull", PAGE, "Publishing stops soon, at storage.reserve."
    known = [sample for sample in samples if sample.disk_free]
    if len(known) > 1 and size and free < size / 2:
        seconds = max(1.0, (known[-1].at - known[0].at) / 1000)
        slope = (known[-1].disk_free - known[0].disk_free) / seconds
        if seconds >= 15 * 60 and free + slope * FILL_SECONDS < reserve:
            yield "RouterDiskFillsUp", TICKET, "The disk is full in four hours at this pace."


def _service(samples: Sequence[ActivitySample], now_ms: float) -> Iterator[tuple[str, str, str]]:
    last = [sample for sample in samples if sample.at > now_ms - 5 * MINUTE_MS]
    quarter = [sample for sample in samples if sample.at > now_ms - 15 * MINUTE_MS]
    if not last:
        return
    requests, errors = sum(one.requests for one in last), sum(one.errors for one in last)
    if requests and errors / requests > MAX_ERRORS:
        yield (
            "RouterErrors",
            PAGE,
            f"{errors / requests:.0%} of the requests are answered with 5xx.",
        )
    if sum(one.sync_ms for one in last) / len(last) > SLOW_SYNC_MS:
        yield "RouterSyncSlow", TICKET, "One sync in a hundred takes more than half a second."
    if sum(one.damaged for one in quarter) > 0:
        yield "RouterDamagedEntries", PAGE, "Damaged entries were skipped; router check names them."
    if sum(one.refused for one in last) / len(last) > MAX_REFUSED:
        yield "RouterLoginsRefused", TICKET, "More than one login a second is refused."
    half = [sample for sample in samples if sample.at > now_ms - 30 * MINUTE_MS]
    if half[-1].lag > max(LARGE_LAG, half[0].lag) and half[-1].at - half[0].at > 25 * MINUTE_MS:
        yield "RouterBacklogGrows", TICKET, "Groups fall behind: the lag grew for half an hour."


def _transactions(gauge: Callable[[str], float]) -> Iterator[tuple[str, str, str]]:
    if (oldest := gauge("router_transactions_oldest_seconds")) > LONG_TRANSACTION_SECONDS:
        text = f"A transaction is open for {oldest / 60:.0f} minutes: readers of its topics wait."
        yield "RouterTransactionOpen", TICKET, text


def _age(gauge: Callable[[str], float], now_ms: float) -> Iterator[tuple[str, str, str]]:
    taken = gauge("router_backup_time_seconds")
    if taken and now_ms / 1000 - taken > MAX_BACKUP_SECONDS:
        days = (now_ms / 1000 - taken) / 86_400
        yield "RouterBackupOld", TICKET, f"The newest backup is {days:.0f} days old."
