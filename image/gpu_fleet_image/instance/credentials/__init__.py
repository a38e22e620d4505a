"""Credentials for users of an instance: each account gets a session of the pool's user role.

The instance's role is root's alone: the metadata service answers nobody else (``metadata.nft``). ``callers``
says who is at the other end of a connection, ``sessions`` keeps what was given, ``aws`` and ``alicloud`` ask
for it, ``facts`` is what users may know of the instance, ``service`` answers them.
"""
