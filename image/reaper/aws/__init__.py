"""What sweep (``connect``) and agent (``agent``) need of AWS; ``alicloud`` has the same entries."""
