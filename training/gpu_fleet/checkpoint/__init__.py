"""Checkpoints: local.py commits to disk, store.py to object stores, saver.py to both while training runs."""
