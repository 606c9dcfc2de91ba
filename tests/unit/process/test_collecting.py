"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc
import weakref

from router.process.collecting import YOUNG, keep_loaded, let_go, settle


class Node:
    """Something that may refer to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_cycles_are_freed_when_the_collector_is_settled() -> None:
    before = gc.get_threshold()
    try:
        settle()
        watched = [weakref.ref(Node()) for _ in range(3)]
        kept: list[list[int]] = []
        while any(ref() is not None for ref in watched):
            kept.append([])  # what the collector counts
            assert len(kept) < 2 * YOUNG
    finally:
        gc.set_threshold(*before)


def test_what_is_loaded_is_left_alone_until_the_process_ends() -> None:
    node = Node()
    watched = weakref.ref(node)
    keep_loaded()
    try:
        del node
        gc.collect()
        assert watched() is not None
    finally:
        let_go()
    gc.collect()
    assert watched() is None
