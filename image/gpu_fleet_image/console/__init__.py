"""``gpu-fleet``: one command for users and platform teams. It needs only click and the standard library."""
