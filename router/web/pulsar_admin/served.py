"""What serves a call that needs no more than one function: a route, who may make it, its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from router.model import TopicName
from router.web.access import Right
from router.web.openapi import description as api
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.context import AdminContext
from router.web.pulsar_admin.views import subscription_name

ADMINS: Final = "administrators"
ANYONE: Final = "any user"


class CallRequest(NamedTuple):
    """A request of a call; `topic` is that of the path, None: it names none."""

    context: AdminContext
    path: Mapping[str, str]
    topic: TopicName | None

    def ask(self, name: str, **arguments: Any) -> Any:
        """Return the result of a call of the broker about the topic of the path."""
        return self.context.administration.call(name, topic=str(self.topic), **arguments)

    def subscription(self) -> str:
        """Return the subscription that the path names."""
        return subscription_name(self.path["subscription"])


class AdminCall(NamedTuple):
    """A call: `who` may make it, or the right on the topic of its path; `form` None: no answer.

    `serve` returns what is answered, None: nothing. A right of Right.MANAGE, and administrators
    with another method than GET, make a change, which is logged.
    """

    route: str
    who: Right | str
    serve: Callable[[CallRequest], object]
    form: api.Form | None = dict
    parameters: tuple[api.Parameter, ...] = ()
    body: api.BodyDescription | None = None
    refuses: Mapping[int, str] = {}
    fails: tuple[str, ...] = shapes.READ_FAILS

    @property
    def name(self) -> str:
        """Return the name of the route's endpoint."""
        return self.serve.__name__

    @property
    def summary(self) -> str:
        """Return what the call does, in a sentence."""
        return (self.serve.__doc__ or "").partition("\n")[0]


def serves(
    route: str,
    who: Right | str,
    form: api.Form | None = dict,
    *parameters: api.Parameter,
    **more: Any,
) -> Callable[[Callable[[CallRequest], object]], AdminCall]:
    """Return a decorator that makes a function a call; `more`: the last fields of `AdminCall`."""
    return lambda serve: AdminCall(route, who, serve, form, parameters, **more)
