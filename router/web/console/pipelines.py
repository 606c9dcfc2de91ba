"""The page of pipelines: those that are declared, and how their runs stand."""

from __future__ import annotations

from flask import Blueprint, Response, request

from router.errors import ForbiddenError
from router.services.pipelines import MAX_LISTED, Pipelines
from router.web.addresses import root
from router.web.console import commands
from router.web.console.described import page
from router.web.console.parts import Parts


class PipelineViews:
    """The view of `/console/pipelines`."""

    def __init__(self, parts: Parts, pipelines: Pipelines) -> None:
        self._parts = parts
        self._pipelines = pipelines

    def add(self, routes: Blueprint) -> None:
        """Add the route."""
        routes.get("/console/pipelines", endpoint="pipelines")(self.listed)

    @page()
    def listed(self) -> Response:
        """Answer the pipelines that this node knows, with state, lag, rate and last error."""
        principal = self._parts.principal()
        if not self._parts.access.may_administer(principal, request.environ):
            raise ForbiddenError(
                "Pipelines are for administrators: the key admin, and users who may manage * by the"
                " file of permissions."
            )
        found = self._pipelines.listed()
        url = f"{root(request.environ)}/console/pipelines?format=json"
        data = {
            "pipelines": found,
            "full": len(found) == MAX_LISTED,
            "commands": [
                commands.curl(principal, url),
                commands.router("pipeline", "list"),
                *(commands.router("pipeline", "status", one["name"]) for one in found),
            ],
        }
        return self._parts.pages.answer("pipelines.html", data)
