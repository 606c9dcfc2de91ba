"""The slow twin of the audit's search for gaps."""

from __future__ import annotations

from collections.abc import Iterable

from router.pipelines.jobs.audit import Account, PartitionGap


def spans(published: Iterable[str], there: Iterable[str]) -> list[PartitionGap]:
    """Return the gaps: what is published, in the partition's order, and not there.

    Its memory grows with the partition, which is why the audit asks Spark instead.
    """
    known = set(there)
    found: list[PartitionGap] = []
    gap = False
    for position in published:
        if position in known:
            gap = False
        elif gap:
            found[-1] = PartitionGap(found[-1].first, position, found[-1].messages + 1)
        else:
            found.append(PartitionGap(position, position, 1))
            gap = True
    return found


def adds_up(account: Account) -> bool:
    """Tell whether the counts fit one another, as they do unless the audit itself is wrong."""
    known = account.archived + account.dead - account.repeats - account.gone - account.unknown
    return account.published == known + account.missing + account.waiting
