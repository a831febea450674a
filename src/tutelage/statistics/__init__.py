"""Success rates, intervals and summaries of rollouts, independent of a run."""
