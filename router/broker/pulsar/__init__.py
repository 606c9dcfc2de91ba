"""The broker's side of the Pulsar binary protocol: listeners, connections, command handlers."""

from router.broker.pulsar.context import ListenerOptions, Messages
from router.broker.pulsar.elsewhere import NoMessages
from router.broker.pulsar.listener import PulsarListener
from router.broker.pulsar.log import LogMessages

__all__ = ["ListenerOptions", "LogMessages", "Messages", "NoMessages", "PulsarListener"]
