"""Send the journal of an instance's units to the stack's log: CloudWatch Logs or Simple Log Service.

``gpu-logs.service`` runs it. ``journal`` follows the journal, ``lines`` chooses what the log gets, ``redact``
masks secrets, ``budget`` limits what one unit sends, ``buffer`` holds waiting lines, and ``shipper`` sends
them to a ``service``: ``aws`` or ``alicloud``.
"""
