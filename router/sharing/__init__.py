"""What workers and nodes share, without I/O: assignments, limits over time, records."""
