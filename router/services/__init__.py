"""What the router does, without HTTP and without sockets: publish, consume, manage topics."""
