"""Saved states of jobs: received, checked, counted, kept and expired."""
