"""The pool of this instance: who it is, who trains with it, and over which network."""
