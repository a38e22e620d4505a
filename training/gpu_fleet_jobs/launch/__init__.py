"""The pool of this instance: its identity, its peers, its network and its price."""
