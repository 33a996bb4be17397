"""The measurements of a run, kept at a path and read back from there."""
