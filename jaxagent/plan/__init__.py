"""What a config's training steps cost on a mesh that need not be there: memory, traffic, time, and what to change."""
