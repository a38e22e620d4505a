"""Is there room: what a cloud says, before an ``up``, to everything that a stack will ask it for."""
