"""`/admin/v2/brokers`, `/admin/v2/clusters` and `/lookup/v2`: health, version, addresses."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from flask import Response, request

from router.errors import TopicNotFoundError
from router.model import TopicName
from router.process.build import VERSION
from router.web.access import Right
from router.web.addresses import root
from router.web.forms import answer
from router.web.openapi.description import STORE, ReplyDescription, answers_json, operation
from router.web.pulsar_admin.context import ResourceViews
from router.web.pulsar_admin.shapes import NAMES, NO_NAME, ONE_CLUSTER, reads
from router.web.pulsar_admin.views import ADMIN, AdminRefusedError
from router.web.requests import decode

CLUSTER: Final = "standalone"
LOOKUP = "/lookup/v2/topic/<pulsar_domain:domain>/<tenant>/<namespace>/<topic>"
_PROBE: Final = TopicName("public", "default", "ready")


class BrokerViews(ResourceViews):
    """The views of brokers and clusters, and of lookups."""

    @operation(
        f"GET {ADMIN}/brokers/health",
        f"GET {ADMIN}/brokers/ready",
        answers={200: ReplyDescription("It answers.", {"text/plain": str})},
        public=True,
    )
    def health(self) -> Response:
        """Answer `ok` when the broker answers; it needs no credentials."""
        with suppress(TopicNotFoundError):  # an answer like any other
            self._administration.partitions(_PROBE)
        return Response("ok", mimetype="text/plain")

    @operation(
        f"GET {ADMIN}/brokers/version",
        answers={200: ReplyDescription("The version.", {"text/plain": str})},
        public=True,
        fails=(),
    )
    def version(self) -> Response:
        """Answer the router's version; it needs no credentials."""
        return Response(VERSION, mimetype="text/plain")

    @operation(
        f"GET {ADMIN}/brokers",
        f"GET {ADMIN}/brokers/<cluster>",
        answers=answers_json(NAMES, "Its address."),
        refuses=ONE_CLUSTER,
    )
    def brokers(self, cluster: str = CLUSTER) -> Response:
        """Answer the only broker."""
        self._authorizer.principal()
        check_cluster(cluster)
        return answer([root(request.environ).partition("://")[2]])

    @reads(f"{ADMIN}/clusters", NAMES, "Its name.", fails=STORE)
    def clusters(self) -> Response:
        """Answer the only cluster."""
        self._authorizer.principal()
        return answer([CLUSTER])

    @reads(f"{ADMIN}/clusters/<cluster>", dict, "Its addresses.", fails=STORE, refuses=ONE_CLUSTER)
    def cluster(self, cluster: str) -> Response:
        """Answer where the only cluster is."""
        self._authorizer.principal()
        check_cluster(cluster)
        address = root(request.environ)
        urls = self._context.addresses.urls(request.environ)
        fields = {"serviceUrlTls" if address.startswith("https:") else "serviceUrl": address}
        names = {"pulsar": "brokerServiceUrl", "pulsar+ssl": "brokerServiceUrlTls"}
        return answer(fields | {names[scheme]: url for scheme, url in urls.items()})

    @reads(
        LOOKUP,
        dict,
        "Its addresses.",
        refuses=NO_NAME | {412: "The name is not allowed, or no Pulsar listener is on."},
    )
    def look_up(self, **path: str) -> Response:
        """Answer the broker of a topic, whether the topic exists or not."""
        self._administration.look_up(self._topic(Right.VIEW, path))
        urls = self._context.addresses.urls(request.environ)
        if not urls:
            raise AdminRefusedError(
                412,
                "Pulsar clients are not served here, or on a port that is not known: set"
                " broker.pulsar (--pulsar) or broker.advertised",
            )
        address = root(request.environ)
        fields = {"httpUrlTls" if address.startswith("https:") else "httpUrl": address}
        plain, secure = urls.get("pulsar"), urls.get("pulsar+ssl", "")
        fields["brokerUrlSsl"] = secure
        if plain:
            fields |= {"brokerUrl": plain, "nativeUrl": plain}
        if secure:
            fields["brokerUrlTls"] = secure
        return answer(fields)


def check_cluster(cluster: str) -> None:
    """Raise RefusedError for a cluster that there is not."""
    if decode(cluster) != CLUSTER:
        raise AdminRefusedError(404, "Cluster does not exist")
