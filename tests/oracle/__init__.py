"""What the pipeline must equal: the same training in one process, with plain libraries."""
