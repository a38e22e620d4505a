"""What must be ours and usable: the account, the image, the key, the budget."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from stacks import naming
from stacks.calls.aws import Aws
from stacks.errors import CannotCheckError
from stacks.preflight.findings import Finding, Verdict, guarded
from stacks.settings import Stack

ARCHITECTURE = "x86_64"
AMAZON = "amazon"
BUILD = "bake one: see image/README.md"


def account(stack: Stack, aws: Aws) -> Finding:
    """The credentials are of the stack's account; whoever has none can ask nothing else.

    Raises:
        CannotCheckError: there are no credentials, or nobody answers.
    """
    found = aws.ask("sts", "get_caller_identity")
    if found["Account"] == stack.account_id or stack.emulated:
        return Finding("account", Verdict.FINE, f"{found['Arn']} of {found['Account']}")
    says = f"the credentials are of {found['Account']}, the stack belongs to {stack.account_id}"
    return Finding("account", Verdict.PROBLEM, says, "choose another AWS_PROFILE, or set account_id")


def owned(stack: Stack, aws: Aws) -> Iterator[Finding]:
    """Image, key and budget."""
    yield guarded("image", partial(_image, stack, aws))
    yield guarded("key", partial(_key, stack, aws))
    yield guarded("budget", partial(_budget, stack, aws))


def _image(stack: Stack, aws: Aws) -> Finding:
    identifier = _image_id(stack, aws)
    try:
        images = aws.ask("ec2", "describe_images", ImageIds=[identifier])["Images"]
    except CannotCheckError as error:
        if "InvalidAMIID" not in str(error):
            raise
        images = []
    if not images:
        return Finding("image", Verdict.PROBLEM, f"{identifier} is not in {stack.region}", BUILD)
    (image,) = images
    wrong = _wrong_with(stack, image)
    if wrong:
        says = f"{identifier} ({image.get('Name', 'unnamed')}) {', '.join(wrong)}"
        return Finding("image", Verdict.PROBLEM, says, f"name another image, or {BUILD}")
    return Finding("image", Verdict.FINE, f"{identifier} ({image.get('Name', 'unnamed')})")


def _image_id(stack: Stack, aws: Aws) -> str:
    """The image that a launch would take now."""
    if stack.image.parameter is None:
        return str(stack.image.id)
    return str(aws.ask("ssm", "get_parameter", Name=stack.image.parameter)["Parameter"]["Value"])


def _wrong_with(stack: Stack, image: dict[str, Any]) -> list[str]:
    owner, ours = image.get("OwnerId", ""), image.get("OwnerId") == stack.account_id or stack.emulated
    trusted = ours or (image.get("ImageOwnerAlias") == AMAZON and not stack.image.bundled)
    root = next(
        (
            disk["Ebs"]["VolumeSize"]
            for disk in image.get("BlockDeviceMappings", [])
            if disk.get("DeviceName") == image.get("RootDeviceName") and "VolumeSize" in disk.get("Ebs", {})
        ),
        0,
    )
    smallest = min(pool.volume_gib for pool in stack.pools)
    return [
        said
        for said, is_so in (
            (f"is {image.get('State')}", image.get("State") != "available"),
            (f"is of account {owner}, which is not ours", not trusted),
            (f"is {image.get('Architecture')}", image.get("Architecture") != ARCHITECTURE),
            (f"has {root} GiB, more than a pool's volume_gib of {smallest}", root > smallest),
        )
        if is_so
    ]


def _key(stack: Stack, aws: Aws) -> Finding:
    """A first ``up`` makes the key; a later one needs the key that is there."""
    alias = f"alias/{naming.prefixed(stack.name)}"
    try:
        key = aws.ask("kms", "describe_key", KeyId=alias)["KeyMetadata"]
    except CannotCheckError as error:
        if "NotFoundException" not in str(error):
            raise
        return Finding("key", Verdict.FINE, f"{alias} does not exist yet: an up makes it")
    if key["KeyState"] == "Enabled":
        return Finding("key", Verdict.FINE, f"{alias} is enabled")
    remedy = f"aws kms cancel-key-deletion --region {stack.region} --key-id {key['KeyId']}"
    enable = f"aws kms enable-key --region {stack.region} --key-id {key['KeyId']}"
    pending = key["KeyState"] == "PendingDeletion"
    says = f"{alias} is {key['KeyState']}: no disk, bucket or topic opens"
    return Finding("key", Verdict.PROBLEM, says, f"{remedy} && {enable}" if pending else enable)


def _budget(stack: Stack, aws: Aws) -> Finding:
    """Whether these credentials may see budgets at all; the account's owner can close that door."""
    name, wanted = naming.prefixed(stack.name), stack.budget.monthly
    budgets = aws.pages("budgets", "describe_budgets", "Budgets", AccountId=stack.account_id)
    known = next((one for one in budgets if one["BudgetName"] == name), None)
    now = "none of that name yet" if known is None else f"now {known['BudgetLimit']['Amount']}"
    return Finding("budget", Verdict.FINE, f"{name}: {wanted} {stack.budget.currency} a month, {now}")
