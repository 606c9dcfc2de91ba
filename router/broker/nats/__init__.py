"""The NATS protocol and JetStream, as the broker serves them."""
