"""Runs that users start on their instances: one Command document, and the submitter's rights.

Systems Manager runs a document as root, and the parameters name the run's account. So the bucket protects the
accounts: only a caller with the tag ``SSMSessionRunAs`` of an account, by which shells open too, can write
below ``runs/jobs/ACCOUNT/``. An instance starts only a job that lies there, has the hash in the parameter,
and names this very instance.
"""

import json

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import policies
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload.sweep_policy import by_account
from gpu_fleet_stacks.settings import Stack

# docs.aws.amazon.com/systems-manager/latest/userguide/documents-schemas-features.html
SCHEMA = "2.2"
TIMEOUT_S = "60"
# Session Manager's own name for it
# (docs.aws.amazon.com/systems-manager/latest/userguide/session-preferences-run-as.html).
ACCOUNT_TAG = "SSMSessionRunAs"
ACCOUNT = f"${{aws:PrincipalTag/{ACCOUNT_TAG}}}"
DESCRIPTIONS = {
    "Account": "Account of the run, as in the stack's access.people",
    "Run": "The run's name",
    "Sha256": "Hash of job.json below runs/jobs/ACCOUNT/RUN/ in the records bucket",
}
SCRIPT = (
    "#!/bin/bash",
    "set -euo pipefail",
    "gpu_fleet=/usr/local/bin/gpu-fleet",
    "exec $gpu_fleet start-run --account='{{ Account }}' --run='{{ Run }}' --sha256='{{ Sha256 }}'",
)


def declare(name: str, stack: Stack, opts: pulumi.ResourceOptions) -> list[pulumi.Resource]:
    """Declare the document; none where the stack names no users, since a run needs an account."""
    if not by_account(stack):
        return []
    document = aws.ssm.Document(
        f"{name}-run",
        name=naming.run_document(stack.name),
        document_type="Command",
        document_format="JSON",
        target_type="/AWS::EC2::Instance",
        content=json.dumps(document_content(stack), indent=1),
        tags=naming.tags(stack.name, stack.owner),
        opts=opts,
    )
    return [document]


def document_content(stack: Stack) -> dict[str, object]:
    """Return the content of the document that starts a run.

    Its schema, of type Command: docs.aws.amazon.com/systems-manager/latest/userguide/
    documents-syntax-data-elements-parameters.html, .../documents-command-ssm-plugin-reference.html
    """
    return {
        "schemaVersion": SCHEMA,
        "description": f"Starts a submitted run of gpu-fleet stack {stack.name}, as its user's account",
        "parameters": {
            key: {"type": "String", "description": DESCRIPTIONS[key], "allowedPattern": f"^{pattern}$"}
            for key, pattern in naming.RUN_PARAMETERS.items()
        },
        "mainSteps": [
            {
                "action": "aws:runShellScript",
                "name": "start",
                "precondition": {"StringEquals": ["platformType", "Linux"]},
                "inputs": {"timeoutSeconds": TIMEOUT_S, "runCommand": list(SCRIPT)},
            }
        ],
    }


def people_statements(stack: Stack, records_arn: pulumi.Output[str]) -> list[policies.Statement]:
    """Return a user's rights beside those over instances: the document, their jobs, and their reports.

    They may list the names in the records bucket already.
    """
    if not by_account(stack):
        return []
    arn = f"arn:{policies.partition(stack.region)}:ssm:{stack.region}:{stack.account_id}"
    jobs, words = (pulumi.Output.concat(records_arn, f"/{place}*") for place in naming.run_prefixes(ACCOUNT))
    return [
        policies.allow(
            "RunDocument", ["ssm:SendCommand"], f"{arn}:document/{naming.run_document(stack.name)}"
        ),
        policies.allow("Submits", ["s3:PutObject"], jobs),
        policies.allow("Follows", ["s3:GetObject"], [jobs, words]),
    ]
