"""``gpu-fleet``: one command for users and platform teams. Needs click and the standard library, no room."""
