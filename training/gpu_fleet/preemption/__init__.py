"""Stops of a run: notices, the agreement of all ranks, and the watchdog for a rank that hangs."""
