"""How a run lies on its processes: world.py how they meet and agree, the others how they share a model."""
