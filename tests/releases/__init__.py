"""What releases have written, which later ones have to read."""
