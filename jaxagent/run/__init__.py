"""What a run keeps in its folder, what it shows, and how it goes on after a stop."""
