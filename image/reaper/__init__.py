"""The idle reaper: an agent on each machine that watches, and a scheduled sweep that decides."""
