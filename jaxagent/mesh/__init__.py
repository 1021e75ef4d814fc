"""The learner's devices, and where arrays lie on them."""
