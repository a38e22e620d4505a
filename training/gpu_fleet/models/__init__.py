"""The models: definitions.py defines them, registry.py names them, pretrained.py reads published ones."""
