"""``gpu-fleet destroy``: take a stack down and lose nothing that nobody gave up."""
