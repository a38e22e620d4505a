"""Check what the account must have on Alibaba Cloud: credentials, image, key, senders of messages."""

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

from gpu_fleet_stacks.clients.alicloud import Alicloud, listed
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.images.alicloud import AlicloudBuilds
from gpu_fleet_stacks.preflight import usable
from gpu_fleet_stacks.preflight.findings import Finding, Rating, guarded
from gpu_fleet_stacks.settings import Stack

# ImageOwnerAlias: www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-describeimages
OURS, OFFICIAL = "self", "system"
# www.alibabacloud.com/help/en/kms/key-management-service/product-overview/billing (2025-01-10) and
# .../pay-as-you-go (2024-08-15): software key management, without tax. No list in CNY was found.
KMS_PRICE = (
    "bought by hand and in no estimate here, since stacks share it: 500 USD a month by subscription, or 4.50 "
    "USD a day and 0.03 USD a day and key version (price list of 2025-01-10)"
)
PAGE = 100  # DescribeInstances
MAIL_CONSOLE = "https://dm.console.aliyun.com"
BUILD = 'build one: `gpu-fleet image build STACK`, as "Bake and build an image" of the documentation says'


def account(stack: Stack, cloud: Alicloud) -> Finding:
    """Check that the credentials are of the stack's account; the provider itself does not check that.

    Raises CannotCheckError if there are no credentials, or the cloud does not answer.
    """
    identity = cloud.ask("sts", "GetCallerIdentity")
    return usable.account(
        stack, identity["Arn"], identity["AccountId"], "use other credentials, or set account_id"
    )


def owned(stack: Stack, cloud: Alicloud) -> Iterator[Finding]:
    """Check image, key, the sender of mail and the secrets of webhooks."""
    yield guarded("image", partial(_image, stack, cloud))
    yield guarded("KMS instance", partial(_key_instance, stack, cloud))
    yield guarded("key", partial(_key, stack, cloud))
    if stack.image.managed:
        yield guarded("instances", partial(_instances, stack, cloud))
    if stack.notify.sender is not None:
        yield guarded("sender", partial(_sender, cloud, stack.notify.sender))
    for room in stack.notify.webhooks:
        yield guarded(f"webhook {room.secret}", partial(_webhook, stack, cloud, room.secret))


def _image(stack: Stack, cloud: Alicloud) -> Finding:
    newest = AlicloudBuilds(stack, cloud).promoted() if stack.image.follows_builds else ""
    identifier = newest or str(stack.image.id)
    answer = cloud.ask("ecs", "DescribeImages", RegionId=stack.region, ImageId=identifier)
    images = listed(answer, "Images", "Image")
    if not images:
        return usable.no_image(stack, identifier, BUILD)
    how = usable.how_booted(stack, is_built=bool(newest))
    named = f"{identifier} ({images[0].get('ImageName', 'unnamed')}), {how}"
    return usable.image(named, _wrong_with(stack, images[0]), BUILD)


def _wrong_with(stack: Stack, image: dict[str, Any]) -> list[str]:
    owner = image.get("ImageOwnerAlias")
    trusted = owner == OURS or (owner == OFFICIAL and not stack.image.bundled)
    return [
        *usable.so(
            (f"is {image.get('Status')}", image.get("Status") != "Available"),
            (f"belongs to {owner}, not to this account", not trusted),
        ),
        *usable.misfits(stack, image.get("Architecture"), int(image.get("Size", 0))),
    ]


def _key_instance(stack: Stack, cloud: Alicloud) -> Finding:
    """Check the KMS instance: only keys of a connected instance rotate every quarter."""
    identifier = str(stack.storage.kms_instance_id)
    status = cloud.ask("kms", "GetKmsInstance", KmsInstanceId=identifier)["KmsInstance"]["Status"]
    if status == "Connected":
        return Finding("KMS instance", Rating.FINE, f"{identifier} is connected; {KMS_PRICE}")
    says = f"{identifier} is {status}: it makes no key"
    return Finding("KMS instance", Rating.PROBLEM, says, "enable it in the KMS console, or name another")


def _key(stack: Stack, cloud: Alicloud) -> Finding:
    alias = f"alias/{naming.prefixed(stack.name)}"
    answer = usable.unless_missing(partial(cloud.ask, "kms", "DescribeKey", KeyId=alias), "NotFound")
    which = f"--region {stack.region} --KeyId {answer.get('KeyMetadata', {}).get('KeyId', alias)}"
    return usable.key(
        alias,
        answer,
        enable=f"aliyun kms EnableKey {which}",
        cancel_deletion=f"aliyun kms CancelKeyDeletion {which}",
    )


def _instances(stack: Stack, cloud: Alicloud) -> Finding:
    """Check the age of instances."""
    asked: dict[str, Any] = {"Tag.1.Key": f"{naming.PROJECT}:stack", "Tag.1.Value": stack.name}
    asked["RegionId"] = stack.region
    started = {}
    for each in cloud.numbered("ecs", "DescribeInstances", "Instances", "Instance", size=PAGE, **asked):
        of = {tag["TagKey"]: tag["TagValue"] for tag in each["Tags"]["Tag"]}
        if (pool := of.get(f"{naming.PROJECT}:pool")) in {known.name for known in stack.pools}:
            started[each["InstanceId"]] = str(pool), datetime.fromisoformat(each["CreationTime"])
    return usable.instances(stack, started, partial(_user_roles, stack, cloud))


def _user_roles(stack: Stack, cloud: Alicloud) -> dict[str, datetime]:
    """Return pool -> when its user role was made."""
    made = {}
    for pool in stack.pools:
        name = naming.prefixed(stack.name, pool.name, "user")
        role = usable.unless_missing(
            partial(cloud.ask, "ram", "GetRole", RoleName=name), "EntityNotExist.Role"
        )
        if role:
            made[pool.name] = datetime.fromisoformat(role["Role"]["CreateDate"])
    return made


def _sender(cloud: Alicloud, sender: str) -> Finding:
    """Check the sender address: DirectMail needs an address of its console with a verified domain.

    www.alibabacloud.com/help/en/direct-mail/api-dm-2015-11-23-querymailaddressbyparam: both states are 0 if
    all is well.
    """
    answer = cloud.ask("dm", "QueryMailAddressByParam", KeyWord=sender, PageSize="50")
    known = (
        address for address in listed(answer, "data", "mailAddress") if address.get("AccountName") == sender
    )
    address = next(known, None)
    remedy = f"create and verify it at {MAIL_CONSOLE}"
    if address is None:
        return Finding("sender", Rating.PROBLEM, f"{sender} is no sender address of DirectMail", remedy)
    wrong = usable.so(
        ("is frozen", str(address.get("AccountStatus")) != "0"),
        ("is of a domain that is not verified", str(address.get("DomainStatus")) != "0"),
    )
    if wrong:
        return Finding("sender", Rating.PROBLEM, f"{sender} {', '.join(wrong)}", remedy)
    return Finding("sender", Rating.FINE, f"{sender} is a sender address of DirectMail")


def _webhook(stack: Stack, cloud: Alicloud, name: str) -> Finding:
    """Check that the webhook's secret exists (API DescribeSecret); its content is not read."""
    subject = f"webhook {name}"
    asked = partial(cloud.ask, "kms", "DescribeSecret", SecretName=name)
    secret = usable.unless_missing(asked, "ResourceNotFound")
    if not secret or secret.get("PlannedDeleteTime"):
        says = "its secret is being deleted" if secret else f"there is no secret {name} in {stack.region}"
        remedy = f"aliyun kms CreateSecret --region {stack.region} --SecretName {name} --VersionId v1"
        return Finding(subject, Rating.PROBLEM, says, f'{remedy} --SecretData "$(cat FILE)"')
    return Finding(subject, Rating.FINE, "its secret exists")
