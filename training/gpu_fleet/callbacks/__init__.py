"""For the loops of other libraries: guard.py what they share, then one module for each library."""
