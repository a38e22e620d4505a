"""Plan check: what Pulumi's own plan would delete, and the passes that it must run in."""
