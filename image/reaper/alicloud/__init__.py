"""What sweep (``connect``) and agent (``agent``) need of Alibaba Cloud; ``aws`` has the same entries."""
