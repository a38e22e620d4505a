"""The models: definitions.py what each is, registry.py their names, weights and repeated layers."""
