"""What agent, gate, commands and set-up share on an instance; it knows none of them.

``instance_file`` is what the stack declares about an instance, ``metadata`` what the cloud does, ``paths``
where files lie, ``alicloud_credentials`` and ``oss`` its role's keys and its bucket, ``files`` small files
written whole and read back safely. The trainer reads the same file and service by modules of its own: it must
be importable on computers that have no ``image/``.
"""
