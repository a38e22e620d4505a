"""Support for the training loops of other libraries: guard.py is shared, and each library has a module."""
