"""Everything a run is made from: its settings, how they are read, and where two differ."""
