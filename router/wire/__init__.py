"""Protocols without I/O: bytes in, events out."""


class ProtocolError(Exception):
    """The peer broke the protocol: these bytes mean nothing, and the connection must close.

    It is no RouterError, because no client of the router is sent one. The owner of the connection
    decides what the error means there.
    """
