"""`swarm demo`: a leader and three fellows on this machine, one real run, from plan to adapter."""
