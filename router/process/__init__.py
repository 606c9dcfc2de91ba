"""A process of the router on its machine: build, locks, socket, memory, service manager."""
