"""Statistics without a run: rates and intervals, and what rollouts add up to."""
