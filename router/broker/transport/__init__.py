"""What every listener shares: connections, frame scheduling, memory budget, TLS, authentication."""
