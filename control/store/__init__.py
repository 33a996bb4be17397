"""What the leader keeps on disk: one database, one writer."""
