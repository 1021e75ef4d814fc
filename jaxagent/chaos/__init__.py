"""Breaks a run on purpose, at seeded moments, and proves from its files that nothing was lost or repeated."""
