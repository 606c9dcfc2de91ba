"""JetStream streams: subjects to topics, what is published, read and deleted."""
