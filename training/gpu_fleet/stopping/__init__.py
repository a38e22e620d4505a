"""Why and when a run stops: notices, the agreement of all ranks, and a rank that no longer moves."""
