"""What programs are told of dead letters, and of what was done with them."""

from __future__ import annotations

from typing import Any

from router.services.dead_letters.scan import Letter, write_letter, write_marks
from router.services.dead_letters.service import Chosen, Outcome, Page
from router.wire import ndjson


def page_told(page: Page) -> dict[str, Any]:
    """Return what is told of letters that wait."""
    return {
        "letters": [_letter(letter) for letter in page.letters],
        "behind": write_marks(page.after),
        "more": page.more,
    }


def outcome_told(outcome: Outcome, chosen: Chosen) -> dict[str, Any]:
    """Return what is told of a call; `behind` and `before` are for the next one."""
    return {
        "done": outcome.done,
        "refused": dict(outcome.refused),
        "failure": outcome.failure,
        "more": outcome.more,
        "behind": write_marks(outcome.after),
        "before": chosen.before_ms,
    }


def _letter(letter: Letter) -> dict[str, Any]:
    came = letter.origin
    return {
        "id": write_letter(letter.stored.position),
        "from": None if came.topic is None else came.topic.local,
        "from_partition": came.partition,
        "from_position": came.position,
        "reason": came.reason,
        "obstacle": letter.obstacle,
        "message": ndjson.line(letter.stored),
    }
