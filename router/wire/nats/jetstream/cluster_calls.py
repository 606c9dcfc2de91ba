"""The calls of the JetStream API that only a cluster serves: subjects, types and names behind them.

nats-server without a cluster answers them with 10010, or not at all where they are for its system
account. Here each is answered with 10010 in its own type.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ClusterCall(NamedTuple):
    """A call: what its subject begins with, the type of its answer, and the names that follow."""

    words: str
    type: str
    names: tuple[str, ...] = ()


_STREAM: Final = ("stream",)
_CONSUMER: Final = ("stream", "consumer")

CLUSTER_CALLS: Final = (
    ClusterCall("STREAM.LEADER.STEPDOWN", "stream_leader_stepdown", _STREAM),
    ClusterCall("STREAM.PEER.REMOVE", "stream_remove_peer", _STREAM),
    ClusterCall("STREAM.PEER.EVACUATE", "stream_evacuate_peer", _STREAM),
    ClusterCall("STREAM.CANCEL_MOVE", "stream_cancel_move", _STREAM),
    ClusterCall("CONSUMER.LEADER.STEPDOWN", "consumer_leader_stepdown", _CONSUMER),
    ClusterCall("CONSUMER.PEER.REMOVE", "consumer_remove_peer", _CONSUMER),
    ClusterCall("CONSUMER.PEER.EVACUATE", "consumer_evacuate_peer", _CONSUMER),
    ClusterCall("META.LEADER.STEPDOWN", "meta_leader_stepdown"),
    ClusterCall("META.RESCUE", "meta_rescue"),
    ClusterCall("SERVER.REMOVE", "meta_server_remove"),
    ClusterCall("SERVER.EVACUATE", "meta_server_evacuate"),
    ClusterCall("ACCOUNT.PURGE", "account_purge", ("account",)),
    ClusterCall("ACCOUNT.STREAM.MOVE", "stream_update", ("account", "stream")),
    ClusterCall("ACCOUNT.STREAM.CANCEL_MOVE", "stream_update", ("account", "stream")),
)
