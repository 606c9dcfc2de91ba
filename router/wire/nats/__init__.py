"""The NATS protocol and the JSON of JetStream, without I/O."""
