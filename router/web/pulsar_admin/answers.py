"""The calls that need no more than one function.

Most of what Pulsar's administration has beside topics and their subscriptions is constant here: one
broker, one cluster, one bundle.
"""

from __future__ import annotations

import re
from typing import Any, Final

from flask import Response, request

from router.model import Position
from router.process.build import VERSION
from router.web.access import Right
from router.web.addresses import root
from router.web.openapi import description as api
from router.web.pulsar_admin import shapes, stats
from router.web.pulsar_admin.brokers import CLUSTER, LOOKUP, check_cluster
from router.web.pulsar_admin.served import ADMINS, ANYONE, AdminCall, CallRequest, serves
from router.web.pulsar_admin.subscriptions import SUBSCRIPTION
from router.web.pulsar_admin.topics import message_id
from router.web.pulsar_admin.views import (
    ADMIN,
    NAMESPACE,
    TOPIC,
    AdminRefusedError,
    body_json,
    body_object,
    namespace_name,
    texts,
    whole,
)
from router.web.requests import Query, number

BUNDLE: Final = "0x00000000_0xffffffff"
MAX_TOPICS: Final = 1_000
"""Whose statistics one answer has."""
_SAMPLE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_BROKER: Final = f"{ADMIN}/brokers"
_CLUSTER: Final = f"{ADMIN}/clusters/<cluster>"
_CHANGE_FAILS: Final = (*shapes.CHANGE_FAILS, "read-failed")
_BACKLOG_FAILS: Final = (*shapes.POLICY_FAILS, "subscription-not-found")
_NO_ID: Final = api.BodyDescription(
    {api.JSON: api.shape({}, {"ledgerId": {"type": "null"}})},
    "No id of a message: a backlog is analyzed from its first message on.",
    required=False,
)


@serves(f"GET {_BROKER}/leaderBroker", ANYONE)
def leader(call: CallRequest) -> object:
    """Answer the only broker."""
    address = root(request.environ)
    return {"brokerId": address.partition("://")[2], "serviceUrl": address}


@serves(f"GET {_BROKER}/<cluster>/<broker>/ownedNamespaces", ADMINS, refuses=shapes.ONE_CLUSTER)
def owned_namespaces(call: CallRequest) -> object:
    """Answer all namespaces: the only broker serves them."""
    check_cluster(call.path["cluster"])
    administration = call.context.administration
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    names = (
        name
        for tenant in administration.tenants()
        for name in administration.namespaces(tenant.name)
    )
    return {f"{name}/{BUNDLE}": status for name in names}


@serves(f"GET {_BROKER}/configuration", ADMINS, shapes.NAMES)
def configuration_names(call: CallRequest) -> object:
    """Answer no names: no setting is changed at run time."""
    return _constant([], call)


@serves(f"GET {_BROKER}/configuration/values", ADMINS)
def configuration_values(call: CallRequest) -> object:
    """Answer no values: no setting is changed at run time."""
    return _constant({}, call)


@serves(f"GET {_BROKER}/configuration/runtime", ADMINS)
def configuration(call: CallRequest) -> object:
    """Answer the settings in force, without secrets."""
    return {"clusterName": CLUSTER, **call.context.settings}


@serves(f"GET {_BROKER}/internal-configuration", ADMINS)
def internal_configuration(call: CallRequest) -> object:
    """Answer no addresses: there is neither ZooKeeper nor BookKeeper to write to."""
    return _constant({"stateStorageServiceUrl": None}, call)


@serves(f"GET {_BROKER}/backlog-quota-check", ADMINS, None)
def check_quotas(call: CallRequest) -> object:
    """Remove what retention and quotas allow to go, now."""
    return call.context.administration.call("check_quotas")


@serves(f"GET {ADMIN}/broker-stats/metrics", ADMINS, [dict])
def broker_metrics(call: CallRequest) -> object:
    """Answer the metrics of the node, with their dimensions."""
    found = []
    for line in call.context.administration.metrics().splitlines():
        if sample := _SAMPLE.fullmatch(line):
            name, labels, value = sample.groups()
            dimensions = dict(_LABEL.findall(labels or ""))
            found.append({"dimensions": dimensions, "metrics": {name: float(value)}})
    return found


@serves(f"GET {ADMIN}/broker-stats/topics", ADMINS, refuses={412: "There are more topics."})
def broker_topics(call: CallRequest) -> object:
    """Answer the statistics of all topics, of 1,000 at most.

    Raises RefusedError if they are too many.
    """
    administration = call.context.administration
    inspection, left = stats.TopicInspection(administration), MAX_TOPICS
    answered: dict[str, Any] = {}
    for tenant in administration.tenants():
        for namespace in administration.namespaces(tenant.name):
            topics = [info.topic for info in administration.topics(namespace)]
            if (left := left - len(topics)) < 0:
                raise AdminRefusedError(
                    412, f"There are more than {MAX_TOPICS} topics: request each"
                )
            shown = {str(topic): stats.topic_stats(inspection.whole(topic)) for topic in topics}
            if shown:
                answered[namespace] = {BUNDLE: {"persistent": shown}}
    return answered


@serves(f"GET {ADMIN}/broker-stats/load-report", ADMINS)
def load_report(call: CallRequest) -> object:
    """Answer addresses and version of the only broker."""
    urls = call.context.addresses.urls(request.environ)
    return {
        "webServiceUrl": root(request.environ),
        "pulsarServiceUrl": urls.get("pulsar"),
        "pulsarServiceUrlTls": urls.get("pulsar+ssl"),
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
        "brokerVersionString": VERSION,
        "bundles": [BUNDLE],
        "numBundles": 1,
        "loadReportType": "LocalBrokerData",
    }


@serves(f"GET {_CLUSTER}/failureDomains", ANYONE, refuses=shapes.ONE_CLUSTER)
def failure_domains(call: CallRequest) -> object:
    """Answer none: there is one broker."""
    return _constant({}, call)


@serves(f"GET {_CLUSTER}/peers", ANYONE, shapes.NAMES, refuses=shapes.ONE_CLUSTER)
def peers(call: CallRequest) -> object:
    """Answer none: there is one cluster."""
    return _constant([], call)


@serves(f"GET {ADMIN}/resourcegroups", ADMINS, shapes.NAMES)
def resource_groups(call: CallRequest) -> object:
    """Answer none."""
    return _constant([], call)


@serves(f"GET {NAMESPACE}/bundles", ADMINS, fails=shapes.POLICY_FAILS)
def bundles(call: CallRequest) -> object:
    """Answer the only bundle of a namespace."""
    return _constant({"boundaries": BUNDLE.split("_"), "numBundles": 1}, call)


@serves(f"GET {NAMESPACE}/replication", ADMINS, shapes.NAMES, fails=shapes.POLICY_FAILS)
def replication(call: CallRequest) -> object:
    """Answer the only cluster."""
    return _constant([CLUSTER], call)


@serves(
    f"POST {NAMESPACE}/replication",
    ADMINS,
    None,
    body=api.BodyDescription({api.JSON: shapes.CLUSTERS}, "The cluster."),
    refuses=shapes.NO_CLUSTER,
    fails=shapes.POLICY_FAILS,
)
def set_replication(call: CallRequest) -> object:
    """Do nothing, for the only cluster; refuse others.

    Raises RefusedError for others.
    """
    if body_json() != [CLUSTER]:
        raise AdminRefusedError(412, f"There is the cluster {CLUSTER} alone")
    return _constant(None, call)


@serves(f"GET {NAMESPACE}/persistence", ADMINS, fails=shapes.POLICY_FAILS)
def persistence(call: CallRequest) -> object:
    """Answer none: how messages are stored is no policy."""
    return _constant(None, call)


@serves(f"GET {NAMESPACE}/permissions", ADMINS, fails=shapes.POLICY_FAILS)
def namespace_permissions(call: CallRequest) -> object:
    """Answer none: topics have owners and lists of users."""
    return _constant({}, call)


@serves(f"PUT {NAMESPACE}/unload", ADMINS, None, fails=shapes.POLICY_FAILS)
def unload_namespace(call: CallRequest) -> object:
    """Do nothing, successfully: no other broker could serve its topics."""
    return _constant(None, call)


@serves(f"POST {NAMESPACE}/clearBacklog", ADMINS, None, fails=_BACKLOG_FAILS)
def clear_backlogs(call: CallRequest) -> object:
    """Acknowledge all that the subscriptions of a namespace have left."""
    return _clear_backlog(call, None)


@serves(f"POST {NAMESPACE}/clearBacklog/<subscription>", ADMINS, None, fails=_BACKLOG_FAILS)
def clear_backlog(call: CallRequest) -> object:
    """Acknowledge all that one subscription has left on the topics of a namespace."""
    return _clear_backlog(call, call.subscription())


@serves(f"GET {LOOKUP}/bundle", Right.VIEW, str)
def bundle(call: CallRequest) -> object:
    """Answer the bundle of a topic, which is always the same."""
    assert call.topic is not None
    call.context.administration.look_up(call.topic)
    return Response(BUNDLE, mimetype="text/plain")


@serves(f"GET {TOPIC}/permissions", Right.MANAGE)
def permissions(call: CallRequest) -> object:
    """Answer who may publish and consume: the owner and the lists of a topic."""
    assert call.topic is not None
    rights = call.context.rights.read(call.topic)
    actions: dict[str, list[str]] = {}
    for names, action in (
        ((rights.owner,) if rights.owner else (), "produce"),
        (rights.writers, "produce"),
        ((rights.owner,) if rights.owner else (), "consume"),
        (rights.readers, "consume"),
    ):
        for name in sorted(names):
            if action not in actions.setdefault(name, []):
                actions[name].append(action)
    return actions


@serves(
    f"GET {TOPIC}/messageid/<timestamp>",
    Right.VIEW,
    shapes.MESSAGE_ID,
    shapes.PERSISTENT_ONLY,
    refuses=shapes.ONE,
    fails=(*shapes.READ_FAILS, "read-failed"),
)
def message_at(call: CallRequest) -> object:
    """Answer the id of the first message stored at a time or later, else of the last."""
    time = number("timestamp", call.path["timestamp"])
    return message_id(Position(*call.ask("message_at", timestamp_ms=time)))


@serves(
    f"PUT {TOPIC}/backlogSize",
    Right.VIEW,
    shapes.INTEGER,
    shapes.PERSISTENT_ONLY,
    body=shapes.PLACE,
    refuses=shapes.ONE,
)
def backlog_size(call: CallRequest) -> object:
    """Answer about how many bytes a topic has from a message on."""
    values = body_object()
    ledger, entry = (whole(values.get(name), name) for name in ("ledgerId", "entryId"))
    return call.ask("bytes_from", ledger=max(0, ledger), entry=max(0, entry))


@serves(f"DELETE {TOPIC}/truncate", Right.MANAGE, None, shapes.PERSISTENT_ONLY, fails=_CHANGE_FAILS)
def truncate(call: CallRequest) -> object:
    """Delete all messages of a topic; its subscriptions stay."""
    return call.ask("truncate")


@serves(f"PUT {TOPIC}/compaction", Right.MANAGE, None, shapes.PERSISTENT_ONLY, fails=_CHANGE_FAILS)
def compact(call: CallRequest) -> object:
    """Compact a topic for the readers that ask for a compacted topic."""
    return call.ask("compact")


@serves(f"GET {TOPIC}/compaction", Right.VIEW, shapes.COMPACTION, shapes.PERSISTENT_ONLY)
def compaction(call: CallRequest) -> object:
    """Answer how the last compaction of a topic went."""
    status, last_error = call.ask("compaction")
    return {"status": status, "lastError": last_error}


@serves(
    f"PUT {TOPIC}/properties",
    Right.MANAGE,
    None,
    shapes.PERSISTENT_ONLY,
    body=shapes.PROPERTIES,
    fails=shapes.CHANGE_FAILS,
)
def set_properties(call: CallRequest) -> object:
    """Set properties of a topic."""
    new = texts(body_json() or {}, "the body")
    return call.ask("change_properties", new=new, clear=[])


@serves(
    f"DELETE {TOPIC}/properties",
    Right.MANAGE,
    None,
    shapes.PERSISTENT_ONLY,
    api.text("key", "The property."),
    fails=shapes.CHANGE_FAILS,
)
def remove_property(call: CallRequest) -> object:
    """Remove a property of a topic."""
    key = Query(request.environ).text("key") or ""
    return call.ask("change_properties", new={}, clear=[key])


@serves(
    f"PUT {SUBSCRIPTION}/properties",
    Right.MANAGE,
    None,
    shapes.PERSISTENT_ONLY,
    body=shapes.PROPERTIES,
    fails=shapes.CHANGE_FAILS,
)
def set_subscription_properties(call: CallRequest) -> object:
    """Give a subscription other properties."""
    properties = texts(body_json() or {}, "the body")
    name = call.subscription()
    return call.ask("change_subscription", subscription=name, properties=properties)


@serves(
    f"POST {SUBSCRIPTION}/analyzeBacklog",
    Right.VIEW,
    dict,
    shapes.PERSISTENT_ONLY,
    body=_NO_ID,
    refuses=shapes.ONE,
    fails=_CHANGE_FAILS,
)
def analyze_backlog(call: CallRequest) -> object:
    """Answer how many entries and messages a subscription has left.

    Raises RefusedError for a part of it.
    """
    if body_object().get("ledgerId") is not None:
        raise AdminRefusedError(
            405, "A backlog is analyzed from its first message on, not from an id"
        )
    found = call.ask("analyze_backlog", subscription=call.subscription())
    ends = {
        f"{which}MessageId": "" if found[which] is None else ":".join(map(str, found[which]))
        for which in ("first", "last")
    }
    return ends | {
        "entries": found["entries"],
        "messages": found["messages"],
        "filterAcceptedEntries": found["entries"],
        "filterAcceptedMessages": found["messages"],
        "aborted": False,
    }


def _constant(value: object, call: CallRequest) -> object:
    """Return a value; raise RefusedError, NamespaceNotFoundError for a path of nothing."""
    if "cluster" in call.path:
        check_cluster(call.path["cluster"])
    if "namespace" in call.path and call.topic is None:
        path = {name: call.path[name] for name in ("tenant", "namespace")}
        call.context.administration.namespace(namespace_name(**path))
    return value


def _clear_backlog(call: CallRequest, subscription: str | None) -> object:
    name = namespace_name(call.path["tenant"], call.path["namespace"])
    administration = call.context.administration
    return administration.call("clear_backlog", namespace=name, subscription=subscription)


CALLS: Final = tuple(found for found in globals().values() if isinstance(found, AdminCall))
