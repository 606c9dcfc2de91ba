"""The commands of the Pulsar binary protocol, as the broker serves them."""
