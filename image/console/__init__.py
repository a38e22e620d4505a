"""``gpu-fleet``: one command for people and platform teams. Needs click and the standard library, no room."""
