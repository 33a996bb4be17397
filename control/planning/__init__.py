"""From cards, model facts and a job to a plan: pure arithmetic."""
