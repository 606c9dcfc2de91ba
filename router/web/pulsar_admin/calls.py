"""The views of the calls in `answers`, and a table of what is not served, for refusals to name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from flask import Blueprint, Response

from router.model import Principal, TopicName
from router.web.access import Right
from router.web.forms import answer
from router.web.openapi import description as api
from router.web.pulsar_admin.answers import CALLS
from router.web.pulsar_admin.context import ResourceViews
from router.web.pulsar_admin.served import ADMINS, AdminCall, CallRequest
from router.web.pulsar_admin.views import done, nothing
from router.web.requests import decode

_log = structlog.get_logger(__name__)

NOT_SERVED: Final = (
    (r"v3/functions|v3/(source|sink)s?\b|v2/worker", "Pulsar Functions and IO connectors"),
    (r"v3/packages", "packages"),
    (r"v3/transactions", "transactions"),
    (r"/offload", "offloading of messages"),
    (r"/permissions", "changes of permissions: owners and access lists of topics say who may"),
    (r"/persistence", "changes of how messages are stored"),
    (r"/bundle", "changes of bundles: there is one"),
    (r"(?i)/\w*rate\b", "limits of rates"),
    (r"namespaces/.*/propert(y|ies)", "properties of namespaces"),
    (r"brokers/configuration", "changes of settings at run time"),
    (r"broker-stats", "statistics of a Java virtual machine"),
    (r"clusters/[^/]+/namespaceIsolationPolicies", "isolation of namespaces: there is one broker"),
    (r"clusters", "changes of clusters: there is one"),
    (r"resourcegroups", "resource groups"),
    (r"/subscriptionTypes|/autoSubscription|/subscriptionExpiration", "policies of subscriptions"),
    (r"(?i)/maxUnacked|/maxSubscr|/maxMessageSize|/maxTopics", "limits of other kinds"),
    (r"/delayedDelivery|/inactiveTopic", "delays and the removal of topics as policies"),
)
"""What requests without a route are about: a pattern of their paths, and words for a refusal."""


def not_served(path: str) -> str:
    """Return what a path without a route is about."""
    return next((words for pattern, words in NOT_SERVED if re.search(pattern, path)), "this call")


class CallViews(ResourceViews):
    """The views of the table."""

    def add(self, routes: Blueprint) -> None:
        """Add the route of each call."""
        for call in CALLS:
            method, path = call.route.split(" ")
            routes.add_url_rule(path, call.name, self._view(call), methods=[method])

    def _view(self, call: AdminCall) -> Callable[..., Response]:
        method = call.route.split(" ")[0]

        def view(**path: str) -> Response:
            principal, topic = self._authorized(call.who, path)
            found = call.serve(CallRequest(self._context, path, topic))
            if method != "GET" and call.who in {ADMINS, Right.MANAGE}:
                names = {name: decode(value) for name, value in path.items()}
                _log.info("administered", call=call.name, **names, user=principal.name)
            if isinstance(found, Response):
                return found
            if call.form is None:
                return done()
            return nothing() if found is None else answer(found)

        if call.form is None:
            answers = api.answers_nothing()
        elif call.form is str:
            answers = {200: api.ReplyDescription("The text.", {"text/plain": str})}
        else:
            answers = api.answers_json(call.form, "The answer.")
        more: api.More = {
            "answers": answers,
            "fails": call.fails,
            "refuses": call.refuses,
            "summary": call.summary,
        }
        if call.body is not None:
            more["body"] = call.body
        return api.operation(*call.parameters, **more)(view)

    def _authorized(
        self, who: Right | str, path: Mapping[str, str]
    ) -> tuple[Principal, TopicName | None]:
        if isinstance(who, Right):
            segments = ("domain", "tenant", "namespace", "topic")
            return self._authorizer.topic(who, {name: path[name] for name in segments})
        if who == ADMINS:
            return self._authorizer.administrator(), None
        return self._authorizer.principal(), None
