"""The idle reaper: an agent on each instance that watches, and a scheduled sweep that decides."""
