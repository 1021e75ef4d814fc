"""What the learner trains on: trajectories as token sequences, and sequences as packed rows."""
