"""The trainer: exact, elastic, fast. Start it with `torchrun -m training train CONFIG.toml`."""
