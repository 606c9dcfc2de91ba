"""Answers that are still to come: a server that asks for their steps is given them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import pytest
from werkzeug.test import create_environ

from router.clocks.steps import DEFERRED, DeferredResponse, Event
from tests.unit.web.applications import Site


class Asked:
    """A request as a server makes it that takes steps for an answer."""

    def __init__(self, site: Site, path: str, method: str = "GET", data: bytes = b"") -> None:
        self.status = ""
        self.headers: dict[str, str] = {}
        environ = create_environ(path, method=method, data=data, content_type="text/plain")
        environ[DEFERRED] = True
        self.answer: Iterable[bytes] | DeferredResponse = site.app.wsgi_app(environ, self._start)

    def _start(
        self, status: str, headers: list[tuple[str, str]], exc_info: object = None
    ) -> Callable[[bytes], None]:
        del exc_info
        self.status, self.headers = status, dict(headers)
        return lambda data: None

    def later(self) -> DeferredResponse:
        """Return the answer, which is not there yet."""
        assert isinstance(self.answer, DeferredResponse)
        return self.answer

    def wait(self) -> Event:
        """Take a step after which it waits."""
        wakeup, seconds = next(self.later().steps)
        assert seconds is not None
        return wakeup

    def body(self) -> bytes:
        """Take the last step, and give the body to the client."""
        with pytest.raises(StopIteration) as stop:
            next(self.later().steps)
        pieces: Iterable[bytes] = stop.value.value
        body = b"".join(pieces)
        if close := getattr(pieces, "close", None):
            close()
        return body


def waiting_poll(site: Site) -> tuple[Asked, Event]:
    """Return a poll that waits, and what wakes it."""
    assert site.post("/events/t", "first").status_code == 200
    assert site.poll().get_json() == ["first"]
    asked = Asked(site, "/events/t/g/c?timeout=20000")
    return asked, asked.wait()


def test_poll_is_answered_when_its_steps_end(site: Site) -> None:
    asked, wakeup = waiting_poll(site)
    woken: list[str] = []
    wakeup.call(lambda: woken.append("x"))
    assert (asked.status, woken) == ("", [])
    site.post("/events/t", "second")
    assert woken == ["x"]
    assert asked.body() == b"second\n"
    assert asked.status == "200 OK"
    assert asked.headers["transactionId"]
    assert site.poll().get_json() == []


def test_poll_whose_steps_are_closed_answers_nobody_and_keeps_nothing(site: Site) -> None:
    asked, _ = waiting_poll(site)
    asked.later().steps.close()
    assert asked.status == ""
    site.post("/events/t", "second")
    assert site.poll().get_json() == ["second"]


def test_publish_is_answered_when_its_steps_end(site: Site) -> None:
    asked = Asked(site, "/events/t", "POST", b"a\nb")
    assert asked.status == ""
    assert not site.backend.published, "it was begun before its first step"
    assert json.loads(asked.body())["count"] == 2
    assert asked.status == "200 OK"


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/events/unknown/g/c", "GET", "404"), ("/events/t/g/c?ack=no", "GET", "400")],
)
def test_refusal_is_the_steps_answer(site: Site, path: str, method: str, status: str) -> None:
    site.post("/events/t", "first")
    asked = Asked(site, path, method)
    assert asked.status == ""
    assert str(json.loads(asked.body())["httpStatusCode"]) == status
    assert asked.status.startswith(status)


@pytest.mark.parametrize(
    ("path", "method"), [("/topics", "GET"), ("/events/t/g/c", "HEAD"), ("/events/t/g", "GET")]
)
def test_what_never_waits_is_answered_as_wsgi_has_it(site: Site, path: str, method: str) -> None:
    asked = Asked(site, path, method)
    assert not isinstance(asked.answer, DeferredResponse)
    assert asked.status
    list(asked.answer)


def test_answer_that_is_taken_for_an_iterable_says_what_it_is(site: Site) -> None:
    later = Asked(site, "/events/t", "POST", b"a").later()
    with pytest.raises(TypeError, match="take the steps"):
        iter(later)
    later.steps.close()
