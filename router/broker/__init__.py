"""The node's broker process: one log, its listeners, and what all workers of the node share."""
