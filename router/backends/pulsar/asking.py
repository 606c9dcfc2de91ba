"""Requests of administration on the connection that messages take, which our own broker answers."""

from __future__ import annotations

from typing import Any

from router.backends.pulsar.link import Link
from router.errors import from_code
from router.wire.pulsar import pulsar_pb2 as pb


def ask(link: Link, command: pb.CommandAdmin, deadline: float, *, again: bool = True) -> Any:
    """Send an administration command and return the answer; raise the failure that it names."""

    def make(request_id: int) -> pb.BaseCommand:
        command.request_id = request_id
        return pb.BaseCommand(type=pb.BaseCommand.ADMIN, admin=command)

    answer = link.call(make, deadline, again=again)
    if answer.HasField("code"):
        raise from_code(answer.code, answer.message)
    return answer
