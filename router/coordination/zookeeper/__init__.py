"""Leases in ZooKeeper: one session a node, a queue for each lease, the live ids of each group.

Theory of operation. `ZooKeeperLink` is the connection, `Entry` a place in a queue, `Roster` the
live ids of a group, `ZookeeperCoordinator` all of them together; `names` says where they are in the
tree. What the node may believe follows from the session's state alone: while the connection is not
there it holds nothing, and `is_valid` answers from heartbeats with the clock of this machine.

Waiting for Kafka's own group membership, the alternative, would make each change of a group a
rebalance of seconds, and starve polls of workers that are busy.
"""

from __future__ import annotations

from router.coordination.zookeeper.coordinator import ZookeeperCoordinator
from router.coordination.zookeeper.link import DownError, ZooKeeperLink, ZookeeperOptions

__all__ = ["DownError", "ZooKeeperLink", "ZookeeperCoordinator", "ZookeeperOptions"]
