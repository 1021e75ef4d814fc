"""The flow of rollouts by itself: its bound by simulation, its measure with real actors, its size for a cluster."""
