"""What two machines must agree on, and how it travels."""
