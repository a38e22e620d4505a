"""Plan check: the deletions in Pulumi's own plan, and the passes that the plan needs."""
