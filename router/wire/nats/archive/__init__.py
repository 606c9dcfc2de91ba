"""The archives of streams that nats-server's snapshots are: compression, and both forms."""
