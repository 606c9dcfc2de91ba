"""What all workers of the node share: leases, registry, counters, and requests about them."""
