"""What a checkpoint takes of small values is made in its own thread, while others change."""

from __future__ import annotations

from router.broker.storage import StoredValues, ValueChange, ValueOperation


def test_a_checkpoint_stores_values_as_they_were_when_it_took_them() -> None:
    values = StoredValues()
    put, remove, drop = ValueOperation.PUT, ValueOperation.REMOVE, ValueOperation.DROP
    first = [
        ValueChange(drop, "gone"),
        ValueChange(put, "a", "kept", b"1"),
        ValueChange(remove, "a", "removed"),
    ]
    for change in first:
        values.apply(change)
    taken = values.take_changes()
    later = [ValueChange(drop, "a"), ValueChange(put, "b", "new", b"2")]
    for change in later:
        values.apply(change)
    assert list(taken) == first
    assert list(values.take_changes()) == later
    assert list(values.take_changes()) == []
