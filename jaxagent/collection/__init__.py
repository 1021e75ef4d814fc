"""Rollouts that are under way: which comes next, who makes it, and which make the next batch."""
