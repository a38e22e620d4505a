"""The pool of this machine: who it is, who trains with it, and over which network."""
