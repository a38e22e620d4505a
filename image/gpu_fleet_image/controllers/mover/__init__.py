"""Where a pool's next instance starts, and who asked for it. See README.md."""
