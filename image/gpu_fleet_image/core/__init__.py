"""Contract of stacks, functions, instances and commands: names and documents that two of them must agree on.

Tags, metric names, keys of objects, the policy and the handshake stand here, and the files and stores that
carry them. All other rooms import it; it imports none of them. The trainer reads the same file and service by
modules of its own: it must be importable on computers that have no ``image/``.
"""
