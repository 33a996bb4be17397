"""One stage of a pipeline on one fellow: load, train, save."""
