"""What the calls of the table answer: constants of a single broker, and what the broker returns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from flask import Response, request

from router.model import Position, TopicName
from router.process.build import VERSION
from router.web.addresses import root
from router.web.pulsar_admin import stats
from router.web.pulsar_admin.brokers import CLUSTER, check_cluster
from router.web.pulsar_admin.context import AdminContext
from router.web.pulsar_admin.topics import message_id
from router.web.pulsar_admin.views import (
    RefusedError,
    body_json,
    body_object,
    namespace_name,
    subscription_name,
    texts,
    whole,
)
from router.web.requests import Query, number

BUNDLE: Final = "0x00000000_0xffffffff"
MAX_TOPICS: Final = 1_000
"""Whose statistics one answer has."""
_SAMPLE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


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


def leader(call: CallRequest) -> object:
    """Return the only broker."""
    address = root(request.environ)
    return {"brokerId": address.partition("://")[2], "serviceUrl": address}


def owned(call: CallRequest) -> object:
    """Return all namespaces, as of the only broker."""
    check_cluster(call.path["cluster"])
    administration = call.context.administration
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    names = (
        name
        for tenant in administration.tenants()
        for name in administration.namespaces(tenant.name)
    )
    return {f"{name}/{BUNDLE}": status for name in names}


def metrics(call: CallRequest) -> object:
    """Return the node's metrics as Pulsar lists them: each with its dimensions."""
    found = []
    for line in call.context.administration.metrics().splitlines():
        if sample := _SAMPLE.fullmatch(line):
            name, labels, value = sample.groups()
            dimensions = dict(_LABEL.findall(labels or ""))
            found.append({"dimensions": dimensions, "metrics": {name: float(value)}})
    return found


def topic_stats(call: CallRequest) -> object:
    """Return the statistics of all topics; raise RefusedError if they are too many."""
    administration = call.context.administration
    inspection, left = stats.TopicInspection(administration), MAX_TOPICS
    answered: dict[str, Any] = {}
    for tenant in administration.tenants():
        for namespace in administration.namespaces(tenant.name):
            topics = [info.topic for info in administration.topics(namespace)]
            if (left := left - len(topics)) < 0:
                raise RefusedError(412, f"There are more than {MAX_TOPICS} topics: request each")
            shown = {str(topic): stats.topic_stats(inspection.whole(topic)) for topic in topics}
            if shown:
                answered[namespace] = {BUNDLE: {"persistent": shown}}
    return answered


def load_report(call: CallRequest) -> object:
    """Return addresses and version of the only broker."""
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


def constant(value: object, call: CallRequest) -> object:
    """Return a value; raise RefusedError, NamespaceNotFoundError for a path of nothing."""
    if "cluster" in call.path:
        check_cluster(call.path["cluster"])
    if "namespace" in call.path and call.topic is None:
        path = {name: call.path[name] for name in ("tenant", "namespace")}
        call.context.administration.namespace(namespace_name(**path))
    return value


def set_clusters(call: CallRequest) -> object:
    """Return nothing for the only cluster; raise RefusedError for others."""
    if body_json() != [CLUSTER]:
        raise RefusedError(412, f"There is the cluster {CLUSTER} alone")
    return constant(None, call)


def clear_backlog(call: CallRequest) -> object:
    """Return nothing once it is acknowledged."""
    name = namespace_name(call.path["tenant"], call.path["namespace"])
    given = call.path.get("subscription")
    subscription = None if given is None else subscription_name(given)
    administration = call.context.administration
    administration.call("clear_backlog", namespace=name, subscription=subscription)
    return None


def permissions(call: CallRequest) -> object:
    """Return who may publish and consume, by owner and lists."""
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


def bundle(call: CallRequest) -> object:
    """Return the only bundle."""
    assert call.topic is not None
    call.context.administration.look_up(call.topic)
    return Response(BUNDLE, mimetype="text/plain")


def message_at(call: CallRequest) -> object:
    """Return the id of the first message stored at a time or later."""
    time = number("timestamp", call.path["timestamp"])
    return message_id(Position(*call.ask("message_at", timestamp_ms=time)))


def backlog_size(call: CallRequest) -> object:
    """Return about how many bytes there are from an id on."""
    values = body_object()
    ledger, entry = (whole(values.get(name), name) for name in ("ledgerId", "entryId"))
    return call.ask("bytes_from", ledger=max(0, ledger), entry=max(0, entry))


def set_properties(call: CallRequest) -> object:
    """Return nothing once they are stored."""
    new = texts(body_json() or {}, "the body")
    return call.ask("change_properties", new=new, clear=[])


def remove_property(call: CallRequest) -> object:
    """Return nothing once it is removed."""
    key = Query(request.environ).text("key") or ""
    return call.ask("change_properties", new={}, clear=[key])


def set_subscription_properties(call: CallRequest) -> object:
    """Return nothing once they are stored."""
    properties = texts(body_json() or {}, "the body")
    name = call.subscription()
    return call.ask("change_subscription", subscription=name, properties=properties)


def analyze_backlog(call: CallRequest) -> object:
    """Return how much a subscription has left; raise RefusedError for a part of it."""
    if body_object().get("ledgerId") is not None:
        raise RefusedError(405, "A backlog is analyzed from its first message on, not from an id")
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
