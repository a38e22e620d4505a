"""Commands for users and operators.

In: a command line, the policy, the records of the sweep. Out: a table or a page; ``keep``, ``release`` and
``unfreeze`` change something.
"""
