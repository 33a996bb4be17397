"""The machines of a pool: invites, heartbeats in, orders out."""
