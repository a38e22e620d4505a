"""Rehearsal: the program of `pulumi up`, unchanged, in this process against moto; no account, no engine."""
