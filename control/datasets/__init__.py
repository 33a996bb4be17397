"""Text in, token files out: tokenized once, addressed by content."""
