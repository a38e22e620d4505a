"""Users' accounts on an instance. In: the stack's ``accounts.json``; out: accounts, groups, keys and homes.

``gpu-accounts.timer`` runs ``gpu-fleet accounts`` at boot and every three minutes. ``roster`` reads the
file, ``changes`` compares it with the instance (pure), ``system`` reads the instance and carries out.
"""
