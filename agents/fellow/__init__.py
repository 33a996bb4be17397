"""The fellow daemon: joins a pool, reports its cards, runs the stages it is ordered to."""
