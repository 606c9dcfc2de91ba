"""The table of calls that need no more than one function: a route, who may make it, its answer.

Most of what Pulsar's administration has beside topics and their subscriptions is constant here: one
broker, one cluster, one bundle. What is not served is a table too, so that a refusal names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import structlog
from flask import Blueprint, Response

from router.model import Principal, TopicName
from router.web.access import Right
from router.web.forms import answer
from router.web.openapi import description as api
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.answers import (
    BUNDLE,
    MAX_TOPICS,
    CallRequest,
    analyze_backlog,
    backlog_size,
    bundle,
    clear_backlog,
    constant,
    leader,
    load_report,
    message_at,
    metrics,
    owned,
    permissions,
    remove_property,
    set_clusters,
    set_properties,
    set_subscription_properties,
    topic_stats,
)
from router.web.pulsar_admin.brokers import CLUSTER, LOOKUP
from router.web.pulsar_admin.context import ResourceViews
from router.web.pulsar_admin.subscriptions import SUBSCRIPTION
from router.web.pulsar_admin.views import ADMIN, NAMESPACE, TOPIC, done, nothing
from router.web.requests import decode

ADMINS: Final = "administrators"
ANYONE: Final = "any user"
_BROKER: Final = f"{ADMIN}/brokers"
_CLUSTER: Final = f"{ADMIN}/clusters/<cluster>"
_CHANGE_FAILS: Final = (*shapes.CHANGE_FAILS, "read-failed")

_log = structlog.get_logger(__name__)


class Call(NamedTuple):
    """A call: `who` may make it, or the right on the topic of its path; `form` None: no answer.

    `serve` returns what is answered, None: nothing. A right of Right.MANAGE, and administrators
    with another method than GET, make a change, which is logged.
    """

    route: str
    name: str
    summary: str
    who: Right | str
    serve: Callable[[CallRequest], object]
    form: api.Form | None = dict
    parameters: tuple[api.Parameter, ...] = ()
    body: api.Body | None = None
    refuses: Mapping[int, str] = {}
    fails: tuple[str, ...] = shapes.READ_FAILS


_ID: Final = api.Body({api.JSON: shapes.MESSAGE_ID}, "The id of a message.", required=False)
CALLS: Final = (
    Call(
        route=f"GET {_BROKER}/leaderBroker",
        name="leader",
        summary="Answer the only broker.",
        who=ANYONE,
        serve=leader,
    ),
    Call(
        route=f"GET {_BROKER}/<cluster>/<broker>/ownedNamespaces",
        name="owned_namespaces",
        summary="Answer all namespaces: the only broker serves them.",
        who=ADMINS,
        serve=owned,
        refuses=shapes.ONE_CLUSTER,
    ),
    Call(
        route=f"GET {_BROKER}/configuration",
        name="configuration_names",
        summary="Answer no names: no setting is changed at run time.",
        who=ADMINS,
        serve=partial(constant, []),
        form=shapes.NAMES,
    ),
    Call(
        route=f"GET {_BROKER}/configuration/values",
        name="configuration_values",
        summary="Answer no values: no setting is changed at run time.",
        who=ADMINS,
        serve=partial(constant, {}),
    ),
    Call(
        route=f"GET {_BROKER}/configuration/runtime",
        name="configuration",
        summary="Answer the settings in force, without secrets.",
        who=ADMINS,
        serve=lambda call_: {"clusterName": CLUSTER, **call_.context.settings},
    ),
    Call(
        route=f"GET {_BROKER}/internal-configuration",
        name="internal_configuration",
        summary="Answer no addresses: there is neither ZooKeeper nor BookKeeper to write to.",
        who=ADMINS,
        serve=partial(constant, {"stateStorageServiceUrl": None}),
    ),
    Call(
        route=f"GET {_BROKER}/backlog-quota-check",
        name="check_quotas",
        summary="Remove what retention and quotas allow to go, now.",
        who=ADMINS,
        serve=lambda call_: call_.context.administration.call("check_quotas"),
        form=None,
    ),
    Call(
        route=f"GET {ADMIN}/broker-stats/metrics",
        name="broker_metrics",
        summary="Answer the metrics of the node, with their dimensions.",
        who=ADMINS,
        serve=metrics,
        form=[dict],
    ),
    Call(
        route=f"GET {ADMIN}/broker-stats/topics",
        name="broker_topics",
        summary=f"Answer the statistics of all topics, of {MAX_TOPICS:,} at most.",
        who=ADMINS,
        serve=topic_stats,
        refuses={412: "There are more topics."},
    ),
    Call(
        route=f"GET {ADMIN}/broker-stats/load-report",
        name="load_report",
        summary="Answer addresses and version of the only broker.",
        who=ADMINS,
        serve=load_report,
    ),
    Call(
        route=f"GET {_CLUSTER}/failureDomains",
        name="failure_domains",
        summary="Answer none: there is one broker.",
        who=ANYONE,
        serve=partial(constant, {}),
        refuses=shapes.ONE_CLUSTER,
    ),
    Call(
        route=f"GET {_CLUSTER}/peers",
        name="peers",
        summary="Answer none: there is one cluster.",
        who=ANYONE,
        serve=partial(constant, []),
        form=shapes.NAMES,
        refuses=shapes.ONE_CLUSTER,
    ),
    Call(
        route=f"GET {ADMIN}/resourcegroups",
        name="resource_groups",
        summary="Answer none.",
        who=ADMINS,
        serve=partial(constant, []),
        form=shapes.NAMES,
    ),
    Call(
        route=f"GET {NAMESPACE}/bundles",
        name="bundles",
        summary="Answer the only bundle of a namespace.",
        who=ADMINS,
        serve=partial(constant, {"boundaries": BUNDLE.split("_"), "numBundles": 1}),
        fails=shapes.POLICY_FAILS,
    ),
    Call(
        route=f"GET {NAMESPACE}/replication",
        name="replication",
        summary="Answer the only cluster.",
        who=ADMINS,
        serve=partial(constant, [CLUSTER]),
        form=shapes.NAMES,
        fails=shapes.POLICY_FAILS,
    ),
    Call(
        route=f"POST {NAMESPACE}/replication",
        name="set_replication",
        summary="Do nothing, for the only cluster; refuse others.",
        who=ADMINS,
        serve=set_clusters,
        form=None,
        body=api.Body({api.JSON: shapes.NAMES}, "The clusters."),
        refuses=shapes.NO_CLUSTER,
        fails=shapes.POLICY_FAILS,
    ),
    Call(
        route=f"GET {NAMESPACE}/persistence",
        name="persistence",
        summary="Answer none: how messages are stored is no policy.",
        who=ADMINS,
        serve=partial(constant, None),
        fails=shapes.POLICY_FAILS,
    ),
    Call(
        route=f"GET {NAMESPACE}/permissions",
        name="namespace_permissions",
        summary="Answer none: topics have owners and lists of users.",
        who=ADMINS,
        serve=partial(constant, {}),
        fails=shapes.POLICY_FAILS,
    ),
    Call(
        route=f"PUT {NAMESPACE}/unload",
        name="unload_namespace",
        summary="Do nothing, successfully: no other broker could serve its topics.",
        who=ADMINS,
        serve=partial(constant, None),
        form=None,
        fails=shapes.POLICY_FAILS,
    ),
    Call(
        route=f"POST {NAMESPACE}/clearBacklog",
        name="clear_backlogs",
        summary="Acknowledge all that the subscriptions of a namespace have left.",
        who=ADMINS,
        serve=clear_backlog,
        form=None,
        fails=(*shapes.POLICY_FAILS, "subscription-not-found"),
    ),
    Call(
        route=f"POST {NAMESPACE}/clearBacklog/<subscription>",
        name="clear_backlog",
        summary="Acknowledge all that one subscription has left on the topics of a namespace.",
        who=ADMINS,
        serve=clear_backlog,
        form=None,
        fails=(*shapes.POLICY_FAILS, "subscription-not-found"),
    ),
    Call(
        route=f"GET {LOOKUP}/bundle",
        name="bundle",
        summary="Answer the bundle of a topic, which is always the same.",
        who=Right.VIEW,
        serve=bundle,
        form=str,
    ),
    Call(
        route=f"GET {TOPIC}/permissions",
        name="permissions",
        summary="Answer who may publish and consume: the owner and the lists of a topic.",
        who=Right.MANAGE,
        serve=permissions,
    ),
    Call(
        route=f"GET {TOPIC}/messageid/<timestamp>",
        name="message_at",
        summary="Answer the id of the first message stored at a time or later, else of the last.",
        who=Right.VIEW,
        serve=message_at,
        form=shapes.MESSAGE_ID,
        refuses=shapes.ONE,
        fails=(*shapes.READ_FAILS, "read-failed"),
    ),
    Call(
        route=f"PUT {TOPIC}/backlogSize",
        name="backlog_size",
        summary="Answer about how many bytes a topic has from a message on.",
        who=Right.VIEW,
        serve=backlog_size,
        form=shapes.INTEGER,
        body=_ID,
        refuses=shapes.ONE,
    ),
    Call(
        route=f"DELETE {TOPIC}/truncate",
        name="truncate",
        summary="Delete all messages of a topic; its subscriptions stay.",
        who=Right.MANAGE,
        serve=lambda call_: call_.ask("truncate"),
        form=None,
        fails=_CHANGE_FAILS,
    ),
    Call(
        route=f"PUT {TOPIC}/properties",
        name="set_properties",
        summary="Set properties of a topic.",
        who=Right.MANAGE,
        serve=set_properties,
        form=None,
        body=shapes.PROPERTIES,
        fails=shapes.CHANGE_FAILS,
    ),
    Call(
        route=f"DELETE {TOPIC}/properties",
        name="remove_property",
        summary="Remove a property of a topic.",
        who=Right.MANAGE,
        serve=remove_property,
        form=None,
        parameters=(api.text("key", "The property."),),
        fails=shapes.CHANGE_FAILS,
    ),
    Call(
        route=f"PUT {SUBSCRIPTION}/properties",
        name="set_subscription_properties",
        summary="Give a subscription other properties.",
        who=Right.MANAGE,
        serve=set_subscription_properties,
        form=None,
        body=shapes.PROPERTIES,
        fails=shapes.CHANGE_FAILS,
    ),
    Call(
        route=f"POST {SUBSCRIPTION}/analyzeBacklog",
        name="analyze_backlog",
        summary="Answer how many entries and messages a subscription has left.",
        who=Right.VIEW,
        serve=analyze_backlog,
        body=_ID,
        refuses=shapes.ONE,
        fails=_CHANGE_FAILS,
    ),
)

NOT_SERVED: Final = (
    (r"v3/functions|v3/(source|sink)s?\b|v2/worker", "Pulsar Functions and IO connectors"),
    (r"v3/packages", "packages"),
    (r"v3/transactions", "transactions"),
    (r"/compaction", "compaction of topics"),
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

    def _view(self, call: Call) -> Callable[..., Response]:
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
            answers = {200: api.Reply("The text.", {"text/plain": str})}
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
