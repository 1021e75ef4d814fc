"""The stages of a run, walked one after the other."""
