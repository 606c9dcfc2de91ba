"""`/admin/v2/brokers` and `/admin/v2/clusters`: one broker, which is a cluster by itself."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, Response, request

from router.backends.embedded.administration import Administration
from router.build import VERSION
from router.errors import TopicNotFoundError
from router.web.addresses import root
from router.web.names import decode
from router.web.openapi.description import (
    OBJECT,
    TEXT,
    Reply,
    answers_json,
    operation,
)
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.door import Door
from router.web.pulsar_admin.errors import RefusedError
from router.web.pulsar_admin.lookup import Addresses
from router.web.pulsar_admin.paths import ADMIN, answer

CLUSTER: Final = "standalone"
_PROBE: Final = "persistent://public/default/ready"


class BrokerViews:
    """The views of brokers and clusters."""

    def __init__(self, door: Door, administration: Administration, addresses: Addresses) -> None:
        self._door = door
        self._administration = administration
        self._addresses = addresses

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get(f"{ADMIN}/brokers/health")(self.health)
        routes.get(f"{ADMIN}/brokers/ready")(self.health)
        routes.get(f"{ADMIN}/brokers/version")(self.version)
        routes.get(f"{ADMIN}/brokers")(self.brokers)
        routes.get(f"{ADMIN}/brokers/<cluster>")(self.brokers)
        routes.get(f"{ADMIN}/clusters")(self.clusters)
        routes.get(f"{ADMIN}/clusters/<cluster>")(self.cluster)

    @operation(answers={200: Reply("It answers.", {"text/plain": TEXT})}, public=True)
    def health(self) -> Response:
        """Answer `ok` when the broker answers; everybody may ask."""
        try:
            self._administration.partitions(_PROBE)
        except TopicNotFoundError:
            pass  # an answer like any other
        return Response("ok", mimetype="text/plain")

    @operation(answers={200: Reply("The version.", {"text/plain": TEXT})}, public=True, fails=())
    def version(self) -> Response:
        """Answer the router's version; everybody may ask."""
        return Response(VERSION, mimetype="text/plain")

    @operation(
        answers=answers_json(shapes.NAMES, "Its address."),
        refuses={404: "There is no such cluster."},
    )
    def brokers(self, cluster: str = CLUSTER) -> Response:
        """Answer the only broker."""
        self._door.principal()
        _check(cluster)
        return answer([root(request.environ).partition("://")[2]])

    @operation(answers=answers_json(shapes.NAMES, "Its name."))
    def clusters(self) -> Response:
        """Answer the only cluster."""
        self._door.principal()
        return answer([CLUSTER])

    @operation(
        answers=answers_json(OBJECT, "Its addresses."), refuses={404: "There is no such cluster."}
    )
    def cluster(self, cluster: str) -> Response:
        """Answer where the only cluster is."""
        self._door.principal()
        _check(cluster)
        here = root(request.environ)
        urls = self._addresses.urls(request.environ)
        told = {"serviceUrlTls" if here.startswith("https:") else "serviceUrl": here}
        names = {"pulsar": "brokerServiceUrl", "pulsar+ssl": "brokerServiceUrlTls"}
        return answer(told | {names[scheme]: url for scheme, url in urls.items()})


def _check(cluster: str) -> None:
    if decode(cluster) != CLUSTER:
        raise RefusedError(404, "Cluster does not exist")
