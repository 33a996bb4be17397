"""One thin handler for each declared operation."""
