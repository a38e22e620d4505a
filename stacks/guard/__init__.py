"""Before Pulumi touches anything: what its own plan would delete, and in which passes it must run."""
