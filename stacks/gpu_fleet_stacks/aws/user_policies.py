"""Policies of users: who takes, keeps, reaches and gives back instances."""

from collections.abc import Sequence

import pulumi

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.aws import policies, sessions, submit
from gpu_fleet_stacks.aws.function_roles import STACK, Conditions, FunctionInputs, money, only_keys, use_key
from gpu_fleet_stacks.aws.identity import ADD_ACTIONS
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

TAKEN = f"{naming.PROJECT}:taken"
# Tags that users set on their instances: kept, and given back.
PERSONAL_TAGS = tuple(
    f"{naming.PROJECT}:{name}" for name in ("keep-until", "keep-reason", "keep-by", "give-back")
)
# docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-restrict-access-quickstart.html
SESSION_ACTIONS = ("ssm:ResumeSession", "ssm:TerminateSession", "ssmmessages:OpenDataChannel")
DEFAULT_DOCUMENT = "SSM-SessionManagerRunShell"
# Documents of AWS that run the caller's commands (systems-manager/latest/userguide/
# getting-started-restrict-access-examples.html), or reach any port as root.
OTHER_DOCUMENTS = (
    *("AWS-StartInteractiveCommand", "AWS-StartNonInteractiveCommand", "AWS-StartSSHSession"),
    *("AWS-StartPortForwardingSession", "AWS-StartPortForwardingSessionToRemoteHost"),
)
PEOPLE_LOOK_ACTIONS = (
    "autoscaling:DescribeAutoScalingGroups",
    "cloudwatch:DescribeAlarms",
    "cloudwatch:GetMetricData",
    "ec2:DescribeInstances",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeTags",
)


def people_policy(inputs: FunctionInputs) -> pulumi.Output[str]:
    """Return the policy for users who take, keep, reach and give back instances; for users or a role.

    A request lies below the name that AWS gives its writer, a user's or a session's, so that no caller can
    ask in another's name. Sessions open on instances that were launched for such a request. The mover alone
    writes the tag that says so.
    """
    stack = inputs.stack
    arn = f"arn:{policies.partition(stack.region)}"
    state = pulumi.Output.concat(inputs.records_arn, f"/{keys.stored(keys.MOVER_STATE)}")
    queue = [keys.stored(keys.QUEUE_JOBS)] if stack.queued else []
    said = [pulumi.Output.concat(inputs.records_arn, f"/{key}") for key in (keys.stored(keys.POLICY), *queue)]
    shell = sessions.document_name(stack) or DEFAULT_DOCUMENT
    forward = naming.forward_document(stack.name)
    documents = [f"{arn}:ssm:{stack.region}:{stack.account_id}:document/{name}" for name in (shell, forward)]
    return policies.document(
        policies.allow("Look", PEOPLE_LOOK_ACTIONS, "*"),
        policies.allow("Read", ["s3:GetObject"], [state, *said, *money(inputs)]),
        policies.allow("Absence", ["s3:ListBucket"], inputs.records_arn),
        *_data(inputs),
        use_key(stack, inputs.key_arn, "s3"),
        policies.allow("SessionDocuments", ["ssm:StartSession"], documents),
        *_never_as_another(stack),
        *_of_caller(inputs, "User", "users/${aws:username}", "${aws:username}", {}),
        *_of_caller(
            inputs,
            "Session",
            "sessions/${aws:userid}",
            "${aws:userid}",
            {"StringLike": {"aws:userid": "AROA*:*"}},
        ),
        *submit.people_statements(stack, inputs.records_arn),
    )


def _data(inputs: FunctionInputs) -> list[policies.Statement]:
    """Allow `gpu-fleet data`: read and add below ``shared/``, delete nothing.

    The listing has no condition on a prefix: with one, S3 answers "denied" for an object that is missing.
    """
    shared = pulumi.Output.concat(inputs.data_arn, f"/{naming.SHARED_PREFIX}*")
    return [
        policies.allow("Data", ["s3:GetObject", *ADD_ACTIONS], shared),
        policies.allow("DataNames", ["s3:ListBucket"], inputs.data_arn),
    ]


def _never_as_another(stack: Stack) -> list[policies.Statement]:
    """Deny session documents that open as another account, where the stack names accounts.

    These open sessions as the agent's account, which can become root, or reach any port by it. They are named
    one by one, in the account and in AWS's. It is a denial, so that no other policy of the caller allows
    them.
    """
    if not stack.access.accounts:
        return []
    arn = f"arn:{policies.partition(stack.region)}:ssm:{stack.region}:"
    names = [f"{arn}{stack.account_id}:document/{DEFAULT_DOCUMENT}"]
    names += [f"{arn}{owner}:document/{name}" for name in OTHER_DOCUMENTS for owner in ("", stack.account_id)]
    return [policies.deny("NeverAsAnother", ["ssm:StartSession"], names)]


def _by_document(stack: Stack) -> Conditions:
    """Require a permitted session document, also for a caller who names none, where the stack names accounts.

    Otherwise Session Manager opens its default document, whose account may become root
    (docs.aws.amazon.com/systems-manager/latest/userguide/getting-started-sessiondocumentaccesscheck.html).
    """
    if not stack.access.accounts:
        return {}
    return {"BoolIfExists": {"ssm:SessionDocumentAccessCheck": "true"}}


def _of_caller(
    inputs: FunctionInputs, kind: str, whose: str, session: str, only: Conditions
) -> Sequence[policies.Statement]:
    """Return the rights of users, or of sessions of roles, over their own requests and instances.

    Each kind of caller has its own statements: a policy variable that one kind lacks must not disable those
    of the other.

    Args:
        kind: prefix of the statements' names.
        whose: the folder of their requests, with a policy variable.
        session: prefix of the ids of their sessions in Session Manager.
        only: the condition that the caller is of this kind.
    """
    stack = inputs.stack
    arn = f"arn:{policies.partition(stack.region)}"
    instances = f"{arn}:ec2:{stack.region}:{stack.account_id}:instance/*"
    likes = {f"aws:ResourceTag/{TAKEN}": f"*/{whose}/*"} | dict(only.get("StringLike", {}))
    theirs: Conditions = {
        "StringEquals": {f"aws:ResourceTag/{STACK}": stack.name},
        "StringLike": likes,
    }
    request = pulumi.Output.concat(inputs.records_arn, f"/reaper/capacity/requests/*/{whose}/*")
    own = f"{arn}:ssm:{stack.region}:{stack.account_id}:session/{session}-*"
    return [
        policies.allow(f"{kind}Asks", ["s3:PutObject"], request, only or None),
        policies.allow(
            f"{kind}KeepsAndGivesBack",
            ["ec2:CreateTags", "ec2:DeleteTags"],
            instances,
            {**theirs, **only_keys(PERSONAL_TAGS)},
        ),
        policies.allow(f"{kind}Connects", ["ssm:StartSession"], instances, {**theirs, **_by_document(stack)}),
        policies.allow(f"{kind}Sessions", SESSION_ACTIONS, own, only or None),
        *(
            [policies.allow(f"{kind}Starts", ["ssm:SendCommand"], instances, theirs)]
            if stack.access.accounts
            else []
        ),
    ]
