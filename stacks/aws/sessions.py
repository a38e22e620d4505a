"""How Session Manager opens a shell where the stack names users: as the account of whoever asks."""

import json

import pulumi
import pulumi_aws as aws

from stacks import naming
from stacks.payload.sweep_archive import by_account
from stacks.settings import Stack

IDLE_MINUTES = "20"
LONGEST_MINUTES = "1440"  # the longest that a session may take


def document_name(stack: Stack) -> str:
    """The stack's own session document; empty where sessions open as the agent's one account for all."""
    return naming.session_document(stack.name) if by_account(stack) else ""


def declare(name: str, stack: Stack, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """The document; nothing where the stack names nobody.

    Without a default account a caller who has no tag ``SSMSessionRunAs`` gets no session at all
    (docs.aws.amazon.com/systems-manager/latest/userguide/session-preferences-run-as.html).
    """
    if not by_account(stack):
        return []
    document = aws.ssm.Document(
        f"{name}-session",
        name=document_name(stack),
        document_type="Session",
        document_format="JSON",
        content=json.dumps(document_content(stack), indent=1),
        tags=naming.tags(stack.name, stack.owner),
        opts=opts,
    )
    return [document]


def document_content(stack: Stack) -> dict[str, object]:
    """Schema of documents of type Session: docs.aws.amazon.com/systems-manager/latest/userguide/
    session-manager-schema.html
    """
    return {
        "schemaVersion": "1.0",
        "description": f"A shell on an instance of gpu-fleet stack {stack.name}, as the caller's own account",
        "sessionType": "Standard_Stream",
        "inputs": {
            "runAsEnabled": True,
            "runAsDefaultUser": "",
            "idleSessionTimeout": IDLE_MINUTES,
            "maxSessionDuration": LONGEST_MINUTES,
            "shellProfile": {"linux": "cd ~ && exec bash --login"},
        },
    }
