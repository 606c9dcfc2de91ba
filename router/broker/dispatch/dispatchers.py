"""The dispatcher for each kind of subscription."""

from __future__ import annotations

from typing import Final

from router.broker.dispatch.consumer import Kind
from router.broker.dispatch.dispatcher import Dispatcher
from router.broker.dispatch.exclusive import Exclusive, Failover
from router.broker.dispatch.key_shared import KeyShared
from router.broker.dispatch.shared import Shared

DISPATCHERS: Final[dict[Kind, type[Dispatcher]]] = {
    dispatcher.kind: dispatcher for dispatcher in (Exclusive, Failover, KeyShared, Shared)
}
