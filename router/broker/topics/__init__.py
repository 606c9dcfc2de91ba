"""The node's topics: partitions, namespaces, policies, schemas, and their administration."""
