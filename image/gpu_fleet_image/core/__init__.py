"""Contract that agent, gate, commands and controllers share. It imports none of them.

``instance_file`` reads the stack's declaration of the instance, ``metadata`` asks the cloud, ``paths``
locates files. ``alicloud_credentials`` and ``oss`` give a role's keys and its bucket. ``files`` writes small
files whole and reads them back safely. The trainer reads the same file and service by modules of its own: it
must be importable on computers that have no ``image/``.
"""
