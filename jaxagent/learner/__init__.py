"""Actor and critic, and how they are trained, kept and published."""
