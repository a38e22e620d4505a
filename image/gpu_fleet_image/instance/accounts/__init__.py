"""Users' accounts on an instance, from the stack's ``accounts.json``: accounts, groups, keys and homes.

``gpu-accounts.timer`` runs ``gpu-fleet accounts`` at boot and every three minutes. ``roster`` reads the file,
``changes`` compares it with the instance (pure), ``system`` reads and changes the instance.
"""
