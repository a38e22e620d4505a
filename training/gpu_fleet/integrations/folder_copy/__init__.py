"""Copy of a folder in which another library or program keeps its checkpoints: upload and restore."""
