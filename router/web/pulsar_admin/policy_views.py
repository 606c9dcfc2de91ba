"""The routes of policies, of namespaces and of topics: those of each row of the table POLICIES."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog
from flask import Blueprint, Response, request

from router.model import Principal, TopicName
from router.model.administration import NamespacePolicies
from router.web.access import Right
from router.web.forms import answer
from router.web.openapi import description as api
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.context import ResourceViews
from router.web.pulsar_admin.policies import MAX_LIMIT, POLICIES, Change, Policy
from router.web.pulsar_admin.views import (
    NAMESPACE,
    TOPIC,
    body_json,
    done,
    flag,
    namespace_name,
    nothing,
)
from router.web.requests import MAX_NUMBER, Query

_log = structlog.get_logger(__name__)

_SIZE_ALONE = {412: "Only the size is limited, and the oldest messages are deleted."}


class PolicyViews(ResourceViews):
    """The views of policies; administrators have those of namespaces, managers their topics'."""

    def add(self, routes: Blueprint) -> None:
        """Add the routes of each policy."""
        for policy in POLICIES:
            for of_topic, prefix in ((False, NAMESPACE), (True, TOPIC)):
                for method, path, endpoint, summary in policy.routes(of_topic=of_topic):
                    make = {"GET": self._shows, "DELETE": self._clears}.get(method, self._sets)
                    view = make(policy, summary, of_topic)
                    routes.add_url_rule(f"{prefix}/{path}", endpoint, view, methods=[method])

    def _shows(self, policy: Policy, summary: str, of_topic: bool) -> Callable[..., Response]:
        reply = api.ReplyDescription(policy.answer, {api.JSON: policy.answer_form or policy.body})
        applied = api.flag("applied", "Answer what the topic has from its namespace as well.")

        def show(**path: str) -> Response:
            value = policy.show(self._policies(path, of_topic), self._context.defaults)
            if value is None and of_topic and flag("applied"):
                value = policy.applied
            return nothing() if value is None else answer(value)

        return api.operation(
            *([applied, shapes.PERSISTENT_ONLY] if of_topic else []),
            answers={200: reply},
            fails=shapes.READ_FAILS if of_topic else shapes.POLICY_FAILS,
            summary=summary,
        )(show)

    def _clears(self, policy: Policy, summary: str, of_topic: bool) -> Callable[..., Response]:
        def clear(**path: str) -> Response:
            return self._change(*self._changed(path, of_topic), dict.fromkeys(policy.fields))

        only = (shapes.PERSISTENT_ONLY,) if of_topic else ()
        return shapes.changes(*only, fails=_fails(of_topic), summary=summary)(clear)

    def _sets(self, policy: Policy, summary: str, of_topic: bool) -> Callable[..., Response]:
        in_query = of_topic and bool(policy.parameter)

        def change(**path: str) -> Response:
            changed = self._changed(path, of_topic)
            query = Query(request.environ)
            if in_query:
                value: Any = query.number(policy.parameter, 0, MAX_NUMBER)
            else:
                value = body_json()
            if policy.kinds:
                value = {query.choice("backlogQuotaType", policy.kinds, policy.kinds[0]): value}
            return self._change(*changed, policy.read(value, "the value"))

        parameters = [shapes.PERSISTENT_ONLY] if of_topic else []
        if policy.kinds:
            parameters.append(api.choice("backlogQuotaType", policy.kinds[:1], "What is limited."))
        if in_query:
            parameters.append(api.number(policy.parameter, "The value.", MAX_LIMIT))
        more: api.More = {"fails": _fails(of_topic), "summary": summary}
        if not in_query:
            more["body"] = api.BodyDescription({api.JSON: policy.body})
        if policy.kinds:
            more["refuses"] = _SIZE_ALONE
        return shapes.changes(*parameters, **more)(change)

    def _policies(self, path: Mapping[str, str], of_topic: bool) -> NamespacePolicies:
        if not of_topic:
            self._authorizer.administrator()
            return self._administration.namespace(namespace_name(**path)).policies
        found = self._administration.call("policies", topic=str(self._topic(Right.VIEW, path)))
        return NamespacePolicies(**found["applied" if flag("applied") else "own"])

    def _changed(
        self, path: Mapping[str, str], of_topic: bool
    ) -> tuple[Principal, str | TopicName]:
        """Return the caller, who may change policies, and the namespace or topic of a path."""
        if of_topic:
            return self._authorizer.topic(Right.MANAGE, path)
        return self._authorizer.administrator(), namespace_name(**path)

    def _change(self, principal: Principal, of: str | TopicName, change: Change) -> Response:
        self._administration.change_policies(of, change)
        _log.info("policies-changed", of=str(of), **_logged(change), user=principal.name)
        return done()


def _fails(of_topic: bool) -> tuple[str, ...]:
    return (*shapes.READ_FAILS, "bad-json") if of_topic else shapes.POLICY_FAILS


def _logged(change: Change) -> dict[str, list[str]]:
    return {
        "changed": [name for name, value in change.items() if value is not None],
        "cleared": [name for name, value in change.items() if value is None],
    }
