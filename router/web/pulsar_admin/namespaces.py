"""`/admin/v2/namespaces`: listed, made, deleted, their policies, and the topics that they have."""

from __future__ import annotations

from typing import Any

import structlog
from flask import Blueprint, Response, request

from router.backends.embedded.administration import MODES, Administration
from router.errors import BadRequestError, ConflictError
from router.web.names import decode
from router.web.openapi.description import (
    OBJECT,
    TEXT,
    answers_json,
    answers_nothing,
    choice,
    operation,
)
from router.web.openapi.description import flag as flag_of
from router.web.parameters import Query
from router.web.pulsar_admin import policies as words
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.door import Door
from router.web.pulsar_admin.errors import RefusedError
from router.web.pulsar_admin.paths import (
    ADMIN,
    NAMESPACE,
    answer,
    done,
    flag,
    given,
    given_flag,
    given_object,
    namespace_name,
    nothing,
)
from router.web.pulsar_admin.tenants import namespaces
from router.wire.pulsar import pulsar_pb2 as pb

_log = structlog.get_logger(__name__)


class NamespaceViews:
    """The views of namespaces."""

    def __init__(
        self, door: Door, administration: Administration, defaults: words.Defaults
    ) -> None:
        self._door = door
        self._administration = administration
        self._defaults = defaults

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get(f"{ADMIN}/namespaces/<tenant>")(self.namespaces)
        routes.get(NAMESPACE)(self.namespace)
        routes.put(NAMESPACE)(self.create_namespace)
        routes.delete(NAMESPACE)(self.delete_namespace)
        routes.get(f"{NAMESPACE}/topics")(self.namespace_topics)
        for field, (get, change, clear) in {
            "retention": (self.retention, self.set_retention, self.clear_retention),
            "deduplication": (self.deduplication, self.set_deduplication, self.clear_deduplication),
            "autoTopicCreation": (self.creation, self.set_creation, self.clear_creation),
        }.items():
            routes.get(f"{NAMESPACE}/{field}")(get)
            routes.post(f"{NAMESPACE}/{field}")(change)
            routes.delete(f"{NAMESPACE}/{field}")(clear)
        routes.get(f"{NAMESPACE}/backlogQuotaMap")(self.quotas)
        routes.post(f"{NAMESPACE}/backlogQuota")(self.set_quota)
        routes.delete(f"{NAMESPACE}/backlogQuota")(self.clear_quota)
        routes.get(f"{NAMESPACE}/schemaCompatibilityStrategy")(self.strategy)
        routes.put(f"{NAMESPACE}/schemaCompatibilityStrategy")(self.set_strategy)
        routes.get(f"{NAMESPACE}/isAllowAutoUpdateSchema")(self.auto_update)
        routes.post(f"{NAMESPACE}/isAllowAutoUpdateSchema")(self.set_auto_update)
        routes.get(f"{NAMESPACE}/schemaValidationEnforced")(self.enforced)
        routes.post(f"{NAMESPACE}/schemaValidationEnforced")(self.set_enforced)

    @operation(answers=answers_json(shapes.NAMES, "The names."), fails=shapes.POLICY)
    def namespaces(self, tenant: str) -> Response:
        """Answer the namespaces of a tenant."""
        self._door.administrator()
        return answer(namespaces(self._administration, decode(tenant)))

    @operation(answers=answers_json(OBJECT, "The policies."), fails=shapes.POLICY)
    def namespace(self, **path: str) -> Response:
        """Answer all policies of a namespace."""
        return answer(words.tell_all(self._policies(path), self._defaults))

    @operation(
        body=shapes.POLICIES, answers=answers_nothing(), fails=shapes.POLICY, refuses=shapes.REFUSED
    )
    def create_namespace(self, **path: str) -> Response:
        """Make a namespace of a tenant that exists."""
        principal, name = self._door.administrator(), namespace_name(**path)
        made = pb.CreateNamespace(namespace=name, policies=words.read_all(given_object()))
        try:
            self._administration.ask(pb.CommandAdmin(create_namespace=made), again=False)
        except ConflictError:
            raise RefusedError(409, "Namespace already exists") from None
        _log.info("namespace-created", namespace=name, user=principal.name)
        return done()

    @operation(
        flag_of("force", "Delete its topics as well."),
        answers=answers_nothing(),
        fails=shapes.POLICY,
        refuses=shapes.IN_USE,
    )
    def delete_namespace(self, **path: str) -> Response:
        """Delete a namespace, by force with all its topics."""
        principal, name = self._door.administrator(), namespace_name(**path)
        gone = pb.DeleteNamespace(namespace=name, force=flag("force"))
        self._administration.ask(pb.CommandAdmin(delete_namespace=gone), again=False)
        _log.info("namespace-deleted", namespace=name, user=principal.name)
        return done()

    @operation(
        choice("mode", MODES, "Which topics."),
        answers=answers_json(shapes.NAMES, "The names."),
        fails=shapes.POLICY,
    )
    def namespace_topics(self, **path: str) -> Response:
        """Answer the topics of a namespace that the caller may see, partitions by their names."""
        principal, name = self._door.principal(), namespace_name(**path)
        mode = Query(request.environ).choice("mode", MODES, "PERSISTENT")
        self._administration.ask(pb.CommandAdmin(get_namespace=name))
        names = self._administration.names(name, mode)
        return answer(self._door.shown(principal, names))

    @operation(answers=shapes.may_be_unset(shapes.RETENTION), fails=shapes.POLICY)
    def retention(self, **path: str) -> Response:
        """Answer the retention."""
        return _policy(words.tell_retention(self._policies(path), self._defaults))

    @operation(body=shapes.body(shapes.RETENTION), answers=answers_nothing(), fails=shapes.POLICY)
    def set_retention(self, **path: str) -> Response:
        """Set the retention."""
        self._door.administrator()
        return self._change(path, words.read_retention(given_object()))

    @operation(answers=answers_nothing(), fails=shapes.POLICY)
    def clear_retention(self, **path: str) -> Response:
        """Have the retention be as settings say."""
        return self._clear(path, "retention_ms", "retention_bytes")

    @operation(answers=shapes.may_be_unset(shapes.FLAG), fails=shapes.POLICY)
    def deduplication(self, **path: str) -> Response:
        """Answer whether messages are deduplicated."""
        policies = self._policies(path)
        own = policies.HasField("deduplication")
        return _policy(policies.deduplication if own else None)

    @operation(body=shapes.body(shapes.FLAG), answers=answers_nothing(), fails=shapes.POLICY)
    def set_deduplication(self, **path: str) -> Response:
        """Say whether messages are deduplicated."""
        self._door.administrator()
        return self._change(path, pb.Policies(deduplication=given_flag()))

    @operation(answers=answers_nothing(), fails=shapes.POLICY)
    def clear_deduplication(self, **path: str) -> Response:
        """Deduplicate as settings say."""
        return self._clear(path, "deduplication")

    @operation(answers=shapes.may_be_unset(shapes.CREATION), fails=shapes.POLICY)
    def creation(self, **path: str) -> Response:
        """Answer how topics come into being by being used."""
        return _policy(words.tell_auto_creation(self._policies(path)))

    @operation(body=shapes.body(shapes.CREATION), answers=answers_nothing(), fails=shapes.POLICY)
    def set_creation(self, **path: str) -> Response:
        """Say how topics come into being by being used."""
        self._door.administrator()
        return self._change(path, words.read_auto_creation(given_object()))

    @operation(answers=answers_nothing(), fails=shapes.POLICY)
    def clear_creation(self, **path: str) -> Response:
        """Have topics come into being as settings say."""
        return self._clear(path, "auto_create", "auto_partitions")

    @operation(answers=answers_json(OBJECT, "The quota."), fails=shapes.POLICY)
    def quotas(self, **path: str) -> Response:
        """Answer the quota of backlogs."""
        return answer(words.tell_quota(self._policies(path)))

    @operation(
        choice("backlogQuotaType", words.QUOTAS, "What is limited."),
        body=shapes.body(shapes.QUOTA),
        answers=answers_nothing(),
        fails=shapes.POLICY,
        refuses={412: "Only the size is limited, and the oldest messages go."},
    )
    def set_quota(self, **path: str) -> Response:
        """Set the quota of backlogs."""
        self._door.administrator()
        kind = Query(request.environ).choice("backlogQuotaType", words.QUOTAS, words.STORAGE)
        return self._change(path, words.read_quota(given_object(), kind))

    @operation(answers=answers_nothing(), fails=shapes.POLICY)
    def clear_quota(self, **path: str) -> Response:
        """Have the quota be as settings say."""
        return self._clear(path, "backlog_bytes")

    @operation(answers=answers_json(TEXT, "The strategy."), fails=shapes.POLICY)
    def strategy(self, **path: str) -> Response:
        """Answer which schemas may follow one another."""
        return answer(words.tell_strategy(self._policies(path)))

    @operation(body=shapes.body(shapes.STRATEGY), answers=answers_nothing(), fails=shapes.POLICY)
    def set_strategy(self, **path: str) -> Response:
        """Say which schemas may follow one another."""
        self._door.administrator()
        strategy = given()
        if strategy in (None, words.UNDEFINED):
            return self._clear(path, "schema_compatibility")
        if not isinstance(strategy, str):
            raise BadRequestError("the body is to be the name of a strategy")
        return self._change(path, pb.Policies(schema_compatibility=strategy))

    @operation(answers=answers_json(shapes.FLAG, "Whether they may."), fails=shapes.POLICY)
    def auto_update(self, **path: str) -> Response:
        """Answer whether clients may bring new schemas."""
        return answer(words.updates(self._policies(path)))

    @operation(body=shapes.body(shapes.FLAG), answers=answers_nothing(), fails=shapes.POLICY)
    def set_auto_update(self, **path: str) -> Response:
        """Say whether clients may bring new schemas."""
        self._door.administrator()
        return self._change(path, pb.Policies(schema_auto_update=given_flag()))

    @operation(answers=answers_json(shapes.FLAG, "Whether they do."), fails=shapes.POLICY)
    def enforced(self, **path: str) -> Response:
        """Answer whether producers need the schema that a topic has."""
        return answer(self._policies(path).schema_validation_enforced)

    @operation(body=shapes.body(shapes.FLAG), answers=answers_nothing(), fails=shapes.POLICY)
    def set_enforced(self, **path: str) -> Response:
        """Say whether producers need the schema that a topic has."""
        self._door.administrator()
        return self._change(path, pb.Policies(schema_validation_enforced=given_flag()))

    def _policies(self, path: dict[str, str]) -> Any:
        self._door.administrator()
        command = pb.CommandAdmin(get_namespace=namespace_name(**path))
        return self._administration.ask(command).namespaces[0].policies

    def _clear(self, path: dict[str, str], *names: str) -> Response:
        return self._change(path, pb.Policies(), *names)

    def _change(self, path: dict[str, str], new: pb.Policies, *clear: str) -> Response:
        principal, name = self._door.administrator(), namespace_name(**path)
        change = pb.ChangePolicies(namespace=name, policies=new, clear=clear)
        self._administration.ask(pb.CommandAdmin(change_policies=change))
        changed = [field.name for field, _ in new.ListFields()]
        _log.info(
            "namespace-changed",
            namespace=name,
            changed=changed,
            cleared=clear,
            user=principal.name,
        )
        return done()


def _policy(value: object) -> Response:
    return nothing() if value is None else answer(value)
