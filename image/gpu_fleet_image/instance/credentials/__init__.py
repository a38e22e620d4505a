"""Credentials for users of an instance: each account gets a session of the pool's user role.

Only root may use the instance's role: the metadata service answers nobody else (``metadata.nft``).
``callers`` identifies the user of a connection, ``sessions`` caches credentials, ``aws`` and ``alicloud``
request them, ``facts`` are the instance's properties for users, ``service`` answers requests.
"""
