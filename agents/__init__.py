"""Those who act from outside the leader: the command line and the fellow daemon."""
