"""Session Manager documents of the stack: a shell where the stack names users, and port forwarding.

A shell opens as the caller's account. Session Manager's agent is root when it connects to a port, so the
stack's document reaches no port that trusts root; AWS's own document would.
"""

import json

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload.sweep_policy import by_account
from gpu_fleet_stacks.settings import Stack

IDLE_MINUTES = "20"
LONGEST_MINUTES = "1440"  # the longest session that is allowed
# SSH, and what a user may listen on: from 1024 on, but NFS and the tunnel to the homes, which are root's
# (image/gpu_fleet_image/recipe/rootfs/usr/share/gpu-fleet/metadata.nft). Below lie credentials (823) and the
# portmapper (111).
FORWARDED = (
    *("22", "102[4-9]", "10[3-9][0-9]", "1[1-9][0-9]{2}"),
    *("20[0-35-9][0-9]", "204[0-8]", "2[1-9][0-9]{2}", "[3-9][0-9]{3}"),
    *("1[0-9]{4}", "200[0-35-9][0-9]", "2004[0-8]", "20[1-9][0-9]{2}", "2[1-9][0-9]{3}", "[3-5][0-9]{4}"),
    *("6[0-4][0-9]{3}", "65[0-4][0-9]{2}", "655[0-2][0-9]", "6553[0-5]"),
)
PORT = f"^({'|'.join(FORWARDED)})$"
LOCAL_PORT = "^[0-9]{1,5}$"


def document_name(stack: Stack) -> str:
    """Return the stack's session document; empty where all sessions open as the agent's one account."""
    return naming.session_document(stack.name) if by_account(stack) else ""


class SessionDocuments(pulumi.ComponentResource):
    """The documents: port forwarding, and a shell where the stack names users.

    Without a default account a caller who has no tag ``SSMSessionRunAs`` gets no session at all
    (docs.aws.amazon.com/systems-manager/latest/userguide/session-preferences-run-as.html).
    """

    def __init__(self, name: str, stack: Stack, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:SessionDocuments", name, None, opts)
        contents = {"forward": forward_content(stack)}
        if by_account(stack):
            contents["session"] = document_content(stack)
        for kind, content in contents.items():
            aws.ssm.Document(
                f"{name}-{kind}",
                name=naming.prefixed(stack.name, kind),
                document_type="Session",
                document_format="JSON",
                content=json.dumps(content, indent=1),
                tags=naming.tags(stack.name, stack.owner),
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({})


def forward_content(stack: Stack) -> dict[str, object]:
    """Return the content of AWS-StartPortForwardingSession, for fewer ports."""
    described = {
        "portNumber": ("On the instance: 22, or from 1024 on but 2049 and 20049", PORT),
        "localPortNumber": ("On the caller's computer", LOCAL_PORT),
    }
    return {
        "schemaVersion": "1.0",
        "description": f"A port of an instance of gpu-fleet stack {stack.name}",
        "sessionType": "Port",
        "parameters": {
            key: {"type": "String", "description": text, "allowedPattern": pattern}
            for key, (text, pattern) in described.items()
        },
        "properties": {
            "type": "LocalPortForwarding",
            **{key: f"{{{{ {key} }}}}" for key in described},
        },
    }


def document_content(stack: Stack) -> dict[str, object]:
    """Return the content of the shell's document.

    Its schema, of type Session:
    docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-schema.html
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
