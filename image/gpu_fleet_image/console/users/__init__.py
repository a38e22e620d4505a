"""Commands for users and operators.

They read a command line, the policy and the sweep's records, and print a table or a page. ``keep``,
``release`` and ``unfreeze`` change something.
"""
