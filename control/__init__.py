"""The leader's office: it plans, remembers and gives orders."""
