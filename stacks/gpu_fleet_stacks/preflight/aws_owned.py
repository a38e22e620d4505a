"""Check what the account must have on AWS: credentials, name, image, key, budget, senders of messages."""

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

from gpu_fleet_stacks.clients.aws import Aws
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.preflight import usable
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.settings import Stack

AMAZON = "amazon"
SECRETS_KEY = "alias/aws/secretsmanager"  # Amazon's own key, for a secret that names none
BUILD = 'build one: `gpu-fleet image build STACK`, as "Bake and build an image" of the documentation says'


def account(stack: Stack, aws: Aws) -> Finding:
    """Check that the credentials are of the stack's account; without credentials no other check can run.

    Raises CannotCheckError if there are no credentials, or the cloud does not answer.
    """
    identity = aws.ask("sts", "get_caller_identity")
    remedy = "choose another AWS_PROFILE, or set account_id"
    return usable.account(stack, identity["Arn"], identity["Account"], remedy)


def owned(stack: Stack, aws: Aws) -> Iterator[Finding]:
    """Check the stack's name, image, key, budget, the sender of mail and the secrets of webhooks."""
    yield guarded("name", partial(_name, stack, aws))
    yield guarded("image", partial(_image, stack, aws))
    yield guarded("key", partial(_key, stack, aws))
    yield guarded("budget", partial(_budget, stack, aws))
    if stack.image.managed:
        yield guarded("instances", partial(_instances, stack, aws))
    if stack.notify.sender is not None:
        yield guarded("sender", partial(_sender, stack, aws, stack.notify.sender))
    for room in stack.notify.webhooks:
        yield guarded(f"webhook {room.secret}", partial(_webhook, stack, aws, room.secret))


def _name(stack: Stack, aws: Aws) -> Finding:
    """Check that no stack of this name is in another region of the account.

    The names of buckets, budget, dashboard and scaling role have no region in them and are global.
    """
    bucket = stack.bucket_name("records")
    # a HEAD has no body, so its error is the status alone: API HeadBucket, "404 Not Found"
    asked = partial(aws.ask, "s3", "head_bucket", Bucket=bucket, ExpectedBucketOwner=stack.account_id)
    answer = usable.unless_missing(asked, "HeadBucket: 404")
    region = answer.get("BucketRegion", stack.region)
    if region == stack.region:
        return Finding("name", Rating.FINE, f"no stack {stack.name!r} in another region")
    says = f"a stack {stack.name!r} is in {region}: {bucket} exists, and other names would collide too"
    return Finding("name", Rating.PROBLEM, says, "name this stack otherwise")


def _image(stack: Stack, aws: Aws) -> Finding:
    identifier = _image_id(stack, aws)
    answer = usable.unless_missing(
        partial(aws.ask, "ec2", "describe_images", ImageIds=[identifier]), "InvalidAMIID"
    )
    images = answer.get("Images")
    if not images:
        return usable.no_image(stack, identifier, BUILD)
    (image,) = images
    # the stack's pipeline distributed it: its images' names hold the stack and the day of the build
    is_built = str(image.get("Name", "")).startswith(f"{naming.prefixed(stack.name)}-2")
    how = usable.how_booted(stack, is_built=is_built)
    named = f"{identifier} ({image.get('Name', 'unnamed')}), {how}"
    return usable.image(named, _wrong_with(stack, image), BUILD)


def _image_id(stack: Stack, aws: Aws) -> str:
    """Return the image that a launch would use now; the first one where there is no build yet."""
    if stack.image.follows_builds:
        written = stack.image.built_parameter(stack.name)
        asked = partial(aws.ask, "ssm", "get_parameter", Name=written)
        if answer := usable.unless_missing(asked, "ParameterNotFound"):
            return str(answer["Parameter"]["Value"])
    if stack.image.parameter is None:
        return str(stack.image.id)
    return str(aws.ask("ssm", "get_parameter", Name=stack.image.parameter)["Parameter"]["Value"])


def _wrong_with(stack: Stack, image: dict[str, Any]) -> list[str]:
    owner, ours = image.get("OwnerId", ""), image.get("OwnerId") == stack.account_id or stack.emulated
    trusted = ours or (image.get("ImageOwnerAlias") == AMAZON and not stack.image.bundled)
    root_gib = next(
        (
            disk["Ebs"]["VolumeSize"]
            for disk in image.get("BlockDeviceMappings", [])
            if disk.get("DeviceName") == image.get("RootDeviceName") and "VolumeSize" in disk.get("Ebs", {})
        ),
        0,
    )
    return [
        *usable.so(
            (f"is {image.get('State')}", image.get("State") != "available"),
            (f"belongs to account {owner}, not to this one", not trusted),
        ),
        *usable.misfits(stack, image.get("Architecture"), root_gib),
    ]


def _key(stack: Stack, aws: Aws) -> Finding:
    alias = f"alias/{naming.prefixed(stack.name)}"
    answer = usable.unless_missing(partial(aws.ask, "kms", "describe_key", KeyId=alias), "NotFoundException")
    which = f"--region {stack.region} --key-id {answer.get('KeyMetadata', {}).get('KeyId', alias)}"
    return usable.key(
        alias,
        answer,
        enable=f"aws kms enable-key {which}",
        cancel_deletion=f"aws kms cancel-key-deletion {which}",
    )


def _budget(stack: Stack, aws: Aws) -> Finding:
    """Check that these credentials may read budgets; the account's owner can forbid it."""
    name, wanted = naming.prefixed(stack.name), stack.budget.monthly
    budgets = aws.pages("budgets", "describe_budgets", "Budgets", AccountId=stack.account_id)
    known = next((budget for budget in budgets if budget["BudgetName"] == name), None)
    now = "none of that name yet" if known is None else f"now {known['BudgetLimit']['Amount']}"
    return Finding("budget", Rating.FINE, f"{name}: {wanted} {stack.budget.currency} a month, {now}")


def _instances(stack: Stack, aws: Aws) -> Finding:
    """Check the age of instances by their root volumes: a stop and start makes no instance younger."""
    pools = {pool.name for pool in stack.pools}
    states = ["pending", "running", "stopping", "stopped"]
    chosen = {f"tag:{naming.PROJECT}:stack": [stack.name], "instance-state-name": states}
    filters = [{"Name": name, "Values": values} for name, values in chosen.items()]
    started = {}
    for each in aws.instances(filters):
        tags = {tag["Key"]: tag["Value"] for tag in each.get("Tags", [])}
        disks = [disk["Ebs"]["AttachTime"] for disk in each.get("BlockDeviceMappings", [])]
        if (pool := tags.get(f"{naming.PROJECT}:pool")) in pools:
            started[each["InstanceId"]] = str(pool), min([each["LaunchTime"], *disks])
    return usable.instances(stack, started, partial(_user_roles, stack, aws))


def _user_roles(stack: Stack, aws: Aws) -> dict[str, datetime]:
    """Return pool -> creation time of its user role: IAM lists all roles; Pulumi chooses names' ends."""
    names = {naming.prefixed(stack.name, pool.name, "user"): pool.name for pool in stack.pools}
    roles = aws.pages("iam", "list_roles", "Roles", "Marker")
    made = {role["RoleName"][: -naming.AUTONAME_SUFFIX_LENGTH]: role["CreateDate"] for role in roles}
    return {pool: made[name] for name, pool in names.items() if name in made}


def _sender(stack: Stack, aws: Aws, sender: str) -> Finding:
    """Check the sender: SES needs a verified identity, the address or its domain (API GetEmailIdentity)."""
    for identity in (sender, sender.partition("@")[2]):
        asked = partial(aws.ask, "sesv2", "get_email_identity", EmailIdentity=identity)
        if usable.unless_missing(asked, "NotFoundException").get("VerifiedForSendingStatus"):
            return _out_of_the_sandbox(stack, aws, identity)
    says = f"neither {sender} nor its domain is verified in SES of {stack.region}: users get no mail"
    remedy = f"aws sesv2 create-email-identity --region {stack.region} --email-identity {sender}"
    return Finding("sender", Rating.PROBLEM, says, f"{remedy}, and open the link in its mail")


def _out_of_the_sandbox(stack: Stack, aws: Aws, identity: str) -> Finding:
    """Check by API GetAccount: docs.aws.amazon.com/ses/latest/dg/request-production-access.html."""
    account = aws.ask("sesv2", "get_account")
    if not account.get("SendingEnabled"):
        remedy = f"aws sesv2 put-account-sending-attributes --region {stack.region} --sending-enabled"
        return Finding("sender", Rating.PROBLEM, "sending is paused for the account in SES", remedy)
    if not account.get("ProductionAccessEnabled"):
        says = "SES is in its sandbox: it mails addresses that are verified themselves, and no other"
        console = f"https://{stack.region}.console.aws.amazon.com/ses/home?region={stack.region}#/account"
        return Finding("sender", Rating.PROBLEM, says, f"request production access: {console}")
    return Finding("sender", Rating.FINE, f"{identity} is verified in SES")


def _webhook(stack: Stack, aws: Aws, name: str) -> Finding:
    """Check that the webhook's secret exists under a key that the sweep may use; its content is not read."""
    subject = f"webhook {name}"
    asked = partial(aws.ask, "secretsmanager", "describe_secret", SecretId=name)
    secret = usable.unless_missing(asked, "ResourceNotFoundException")
    if not secret or secret.get("DeletedDate"):
        says = "its secret is being deleted" if secret else f"there is no secret {name} in {stack.region}"
        remedy = f"aws secretsmanager create-secret --region {stack.region} --name {name}"
        return Finding(subject, Rating.PROBLEM, says, f"{remedy} --secret-string file://FILE")
    key = secret.get("KmsKeyId", SECRETS_KEY)
    if key == SECRETS_KEY or _key_id(aws, key) == _key_id(aws, f"alias/{naming.prefixed(stack.name)}"):
        return Finding(subject, Rating.FINE, "its secret exists")
    says = f"its secret is under {key}, which the sweep may not use"
    remedy = f"aws secretsmanager update-secret --region {stack.region} --secret-id {name}"
    return Finding(subject, Rating.PROBLEM, says, f"{remedy} --kms-key-id {SECRETS_KEY}")


def _key_id(aws: Aws, name: str) -> str:
    asked = partial(aws.ask, "kms", "describe_key", KeyId=name)
    answer = usable.unless_missing(asked, "NotFoundException")
    return str(answer.get("KeyMetadata", {}).get("KeyId", name))
