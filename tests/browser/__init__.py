"""The console in a real Chromium, on the real doors of a leader."""
