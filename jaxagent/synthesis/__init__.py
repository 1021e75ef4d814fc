"""What is generated: the demo's tasks, its scripted expert, and lessons."""
