"""What an instance's units write to the journal, in the stack's log: CloudWatch Logs or Simple Log Service.

``gpu-logs.service`` runs it. ``journal`` follows the journal, ``lines`` chooses what the log gets, ``redact``
makes secrets unreadable, ``budget`` bounds what one unit sends, ``buffer`` holds what waits, ``shipper``
sends it to a ``service``: ``aws`` or ``alicloud``.
"""
