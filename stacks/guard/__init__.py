"""Before Pulumi touches anything: what its own plan would take away, and in which passes it must run."""
