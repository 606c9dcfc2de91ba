"""The broker's side of the Pulsar binary protocol: listeners, connections, command handlers."""

from router.broker.pulsar.context import ListenerOptions
from router.broker.pulsar.listener import PulsarListener

__all__ = ["ListenerOptions", "PulsarListener"]
