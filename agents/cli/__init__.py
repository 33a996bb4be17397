"""The command swarm: words in, an operation called, text out."""
