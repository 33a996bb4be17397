"""A pool on one machine that goes through declared troubles: `swarm rehearse`."""
