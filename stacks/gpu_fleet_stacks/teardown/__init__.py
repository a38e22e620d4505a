"""``gpu-fleet destroy``: delete a stack, but only the data that the operator names."""
