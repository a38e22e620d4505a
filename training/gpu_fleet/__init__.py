"""The trainer: exact, elastic, fast. Start it with `torchrun -m gpu_fleet train CONFIG.toml`."""
