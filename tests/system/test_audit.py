"""The audit of the growth tests finds each fault that is put into traffic without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.system.audit import Audit, Delivery, Post, Report

pytestmark = pytest.mark.system

LABELS = ("a", "b")


def traffic() -> Audit:
    """Ten messages of each label in a partition of its own, given to two groups, in two phases."""
    audit = Audit(complete={"g", "h"}, stored=[[], []])
    audit.begin("first", 0.0)
    audit.begin("second", 5.0)
    for number in range(10):
        for partition, label in enumerate(LABELS):
            message = f"{label}:{number}"
            audit.posts.append(Post(message, number, 200))
            audit.stored[partition].append(message)
            for group in sorted(audit.complete):
                audit.deliveries.append(Delivery(group, "1", number + 0.5, (message,)))
    return audit


def lose(audit: Audit) -> None:
    audit.stored[0].remove("a:4")
    audit.deliveries = [d for d in audit.deliveries if d.messages != ("a:4",)]


def withhold(audit: Audit) -> None:
    audit.deliveries.remove(Delivery("g", "1", 4.5, ("a:4",)))


def invent(audit: Audit) -> None:
    audit.deliveries.append(Delivery("g", "1", 9.9, ("b:99",)))


def double(audit: Audit) -> None:
    audit.stored[0].append("a:9")


def deny(audit: Audit) -> None:
    audit.posts[0] = replace(audit.posts[0], status=503)


def repeat(audit: Audit) -> None:
    audit.deliveries.append(Delivery("h", "2", 7.0, ("b:3",)))


def swap_stored(audit: Audit) -> None:
    audit.stored[1][2:4] = ["b:3", "b:2"]


def swap_given(audit: Audit) -> None:
    place = audit.deliveries.index(Delivery("g", "1", 2.5, ("a:2",)))
    audit.deliveries[place] = Delivery("g", "1", 4.0, ("a:2",))


def faults(report: Report) -> set[str]:
    found = {"lost " + place for place in report.lost}
    for name in ("doubled", "denied", "repeats", "late"):
        if getattr(report, name):
            found.add(name)
    return found


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    report = traffic().report()
    assert faults(report) == set()
    assert [(row["phase"], row["stored"], row["given"]) for row in report.rows] == [
        ("first", 10, 20),
        ("second", 10, 20),
    ]


@pytest.mark.parametrize(
    ("sabotage", "expected"),
    [
        (lose, {"lost store"}),
        (withhold, {"lost g"}),
        (invent, {"lost g, not in the store"}),
        (double, {"doubled"}),
        (deny, {"denied"}),
        (repeat, {"repeats"}),
        (swap_stored, {"late"}),
        (swap_given, {"late"}),
    ],
)
def test_each_fault_is_found(sabotage: Callable[[Audit], None], expected: set[str]) -> None:
    audit = traffic()
    sabotage(audit)
    assert faults(audit.report()) == expected


def test_a_repeat_says_when_the_message_was_given_before_and_counts_in_its_phase() -> None:
    audit = traffic()
    repeat(audit)
    report = audit.report()
    (found,) = report.repeats
    assert (found.message, found.at, found.since) == ("b:3", 7.0, 3.5)
    assert [row["repeated"] for row in report.rows] == [0, 1]


def test_an_unanswered_post_may_be_stored_or_not() -> None:
    audit = traffic()
    audit.posts += [Post("a:10", 9.0, 0), Post("a:11", 9.0, 504)]
    audit.stored[0].append("a:10")
    audit.deliveries += [Delivery(group, "1", 9.5, ("a:10",)) for group in audit.complete]
    report = audit.report()
    assert faults(report) == set()
    assert report.rows[1]["unknown"] == 2


def test_what_a_group_had_before_is_not_missed_and_is_a_repeat_when_it_comes_again() -> None:
    audit = traffic()
    audit.stored[0].insert(0, "old:0")
    audit.before = {"g": frozenset({"old:0"}), "h": frozenset({"old:0"})}
    assert faults(audit.report()) == set()
    audit.deliveries.append(Delivery("g", "1", 6.0, ("old:0",)))
    assert faults(audit.report()) == {"repeats"}
