"""What the Kafka backend and the Kafka listener both use, beside the protocol."""
