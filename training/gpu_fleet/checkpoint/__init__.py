"""Checkpoints: local.py commits folders, store.py object stores, saver.py does both beside the training."""
