"""Where a group stands in a partition: where it starts, what is in flight, how much is left."""
