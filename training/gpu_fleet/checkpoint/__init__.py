"""Checkpoints: local.py commits folders, store.py in object stores, saver.py both beside the training."""
