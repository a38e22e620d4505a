"""Preflight on Alibaba Cloud: the finding for each answer, with the official client and a local server."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aliyunsdkcore.client import AcsClient
from botocore.exceptions import ClientError
from click.testing import CliRunner

from gpu_fleet_image.core.alicloud_credentials import KEY_ID
from gpu_fleet_image.providers.alicloud import session
from gpu_fleet_stacks.clients.alicloud import Alicloud
from gpu_fleet_stacks.preflight import alicloud
from gpu_fleet_stacks.preflight.command import preflight
from gpu_fleet_stacks.preflight.findings import Finding, Rating
from gpu_fleet_stacks.settings import Stack
from tests.stacks.alicloud_account import Account, Refusal, serving
from tests.stacks.alicloud_examples import pool, stack
from tests.stacks.edits import EXISTING_VSWITCHES
from tests.stacks.preflight import preflight_rows
from tests.stacks.preflight.preflight_rows import Row, about

FINE, NOTE, PROBLEM, UNCHECKED = Rating
ID = "1234567890123456"
IMAGE = {"ImageId": "m-wz90000000000000000", "ImageName": "gpu-fleet-7", "ImageOwnerAlias": "self"}
IMAGE |= {"Status": "Available", "Architecture": "x86_64", "Size": 100}
G7 = "ecs.gn7i-c8g1.2xlarge"
OPEN, SHUT = "NoSuchKey", "PublicEndpointForbidden"
ELSEWHERE = "The bucket you are attempting to access must be addressed using the specified endpoint."


def limits(postpaid: int, used: int = 0, spot: int = 10_000) -> dict[str, Any]:
    values = {"max-postpaid": postpaid, "used-postpaid": used, "max-spot": spot, "used-spot": 0}
    items = []
    for name, value in values.items():
        item = {"AttributeName": f"{name}-instance-vcpu-count"}
        items.append(item | {"AttributeValues": {"ValueItem": [{"Value": str(value)}]}})
    return {"AccountAttributeItems": {"AccountAttributeItem": items}}


def center(total: float, used: float):
    """Return an answer of Quota Center with the requested quota."""

    def answer(asked):
        code = asked.get("QuotaActionCode", "eip_example")
        row = {"QuotaActionCode": code, "QuotaDescription": "most", "TotalQuota": total, "TotalUsage": used}
        return {"Quotas": [row]}

    return answer


def stock(**zones: str):
    """Return the stock of the requested type by zone (``d`` for cn-shenzhen-d)."""

    def answer(asked):
        rows = []
        for zone, category in zones.items():
            sold = {"Value": asked["InstanceType"], "Status": "Available", "StatusCategory": category}
            resource = {"Type": "InstanceType", "SupportedResources": {"SupportedResource": [sold]}}
            available = {"AvailableResource": [resource]}
            rows.append({"ZoneId": f"cn-shenzhen-{zone}", "AvailableResources": available})
        return {"AvailableZones": {"AvailableZone": rows}}

    return answer


def advice(rate: str) -> dict[str, Any]:
    sold = {"AvailableSpotResource": [{"InstanceType": G7, "InterruptRateDesc": rate}]}
    zone = {"ZoneId": "cn-shenzhen-d", "AvailableSpotResources": sold}
    return {"AvailableSpotZones": {"AvailableSpotZone": [zone]}}


class Buckets:
    """Fake of OSS for boto3: bucket -> its region, and the answer to a read of a missing object."""

    def __init__(self, read=OPEN, refused="", **regions: str) -> None:
        self._regions = {name.replace("_", "-"): region for name, region in regions.items()}
        self._read, self._refused = read, refused

    def list_buckets(self):
        if self._refused:
            raise refusal(self._refused, "ListBuckets")
        return {"Buckets": [{"Name": name} for name in self._regions]}

    def get_object(self, Bucket, Key):  # noqa: N803 - boto3's
        raise refusal(self._read, "GetObject")

    def get_bucket_location(self, Bucket):  # noqa: N803 - boto3's
        if Bucket not in self._regions:
            raise refusal("NoSuchBucket", "GetBucketLocation")
        if self._regions[Bucket] == ELSEWHERE:
            raise refusal("AccessDenied", "GetBucketLocation", ELSEWHERE)
        return {"LocationConstraint": f"oss-{self._regions[Bucket]}"}


def refusal(code, operation, message="no"):
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


def zones_of_nas(*zones: str) -> dict[str, Any]:
    """Return an answer of NAS's DescribeZones; a zone that does not sell the kind has no instance types."""
    sold = {"cn-shenzhen-x": [], **{zone: [{"StorageType": "advance"}] for zone in zones}}
    rows = [{"ZoneId": zone, "InstanceTypes": {"InstanceType": kinds}} for zone, kinds in sold.items()]
    return {"Zones": {"Zone": rows}}


def account(**changes: Any) -> Account:
    """Return an account without limits, with some answers replaced."""
    answers: dict[str, Any] = {
        "GetRole": {"Role": {"RoleName": "a role"}},
        "GetFlowLogServiceStatus": {"Enabled": True},
        "DescribeAccountKmsStatus": {"AccountStatus": "Enabled"},
        "GetSlsService": {"Enabled": True, "Status": "Opened"},
        "CheckProductOpen": {"Success": True},
        "DescribeZones": zones_of_nas("cn-shenzhen-d", "cn-shenzhen-e"),
        "GetCallerIdentity": {"AccountId": ID, "Arn": f"acs:ram::{ID}:user/test"},
        "DescribeAccountAttributes": limits(10_000),
        "ListProductQuotas": center(20, 3),
        "DescribeAvailableResource": stock(d="WithStock", e="WithStock"),
        "DescribeSpotAdvice": advice("0-3%"),
        "DescribeImages": {"Images": {"Image": [IMAGE]}},
        "GetKmsInstance": {"KmsInstance": {"Status": "Connected"}},
        "DescribeKey": Refusal("Forbidden.AliasNotFound", "alias not found"),
        "DescribeInstances": {"Instances": {"Instance": []}, "TotalCount": 0},
    }
    return Account(answers | changes)


@dataclass(frozen=True)
class Seen:
    """An account with its buckets, seen from one place.

    Attributes:
        reachable: hosts of OSS that answer; None for all.
    """

    account: Account = field(default_factory=account)
    s3: Buckets = field(default_factory=lambda: Buckets(ours="cn-shenzhen"))
    reachable: frozenset[str] | None = None


def look(settings: Stack, cloud: Account | Seen) -> Iterable[Finding]:
    seen = cloud if isinstance(cloud, Seen) else Seen(cloud)
    with serving(seen.account) as asked:
        answers = (lambda host: True) if seen.reachable is None else seen.reachable.__contains__
        yield from alicloud.look(settings, asked, answers, seen.s3)


def found(settings: Stack, cloud: Account | Seen) -> dict[str, Finding]:
    return {finding.subject: finding for finding in look(settings, cloud)}


def wrong_of(*rows: Row) -> list[str]:
    return preflight_rows.wrong(rows, look, account(), stack())


def test_where_there_is_room_every_answer_is_fine_and_every_request_was_signed():
    cloud = account()

    answers = found(stack(), cloud)

    activation = answers.pop("activation")
    services = ("Function Compute", "CloudMonitor", "NAS", "OSS", "Simple Log", "PrivateLink", "KMS")
    assert activation.rating is NOTE, "no call tells"
    assert [name for name in services if name in activation.remedy] == ["Function Compute", "CloudMonitor"]
    assert "NAS" in found(stack(storage=HOME), cloud)["activation"].remedy
    assert {finding.rating for finding in answers.values()} == {FINE}
    assert list(answers) == [
        *("account", "role AliyunServiceRoleForAutoScaling", "role AliyunECSDiskEncryptDefaultRole"),
        *("flow logs", "KMS", "Simple Log Service", "OSS", "OSS from here", "name"),
        *("vCPUs for dev, postpaid", "elastic addresses", "VPCs", "types of dev"),
        *("image", "KMS instance", "key", "instances"),
    ]
    assert "500 USD a month" in answers["KMS instance"].says
    assert cloud.unsigned == []


# quotas


def test_virtual_cpus_are_held_to_the_accounts_limits():
    def limited(**answer: int) -> Account:
        return account(DescribeAccountAttributes=limits(**answer))

    postpaid, spot = "vCPUs for dev, postpaid", stack(pools=[pool(market="spot", on_demand_base=1)])
    untold = "DescribeAccountAttributes says no max-postpaid-instance-vcpu-count"
    few_spot = limited(postpaid=10_000, spot=4)
    rows = (
        Row(postpaid, FINE, "needs 16, 0 in use, 16 allowed", limited(postpaid=16)),
        Row(postpaid, NOTE, "needs 16, 1 in use, 16 allowed", limited(postpaid=16, used=1)),
        Row(postpaid, PROBLEM, "needs 16, 0 in use, 15 allowed", limited(postpaid=15)),
        Row(postpaid, FINE, "needs 8,", few_spot, spot),
        Row("vCPUs for dev, spot", PROBLEM, "needs 8,", few_spot, spot),
        Row(postpaid, UNCHECKED, untold, account(DescribeAccountAttributes={})),
    )

    assert wrong_of(*rows) == []


def test_a_full_quota_of_the_region_is_reported_with_the_command_that_asks_for_more():
    full, tight = account(ListProductQuotas=center(0, 0)), account(ListProductQuotas=center(20, 20))
    vpc = (
        "aliyun quotas CreateQuotaApplication --ProductCode vpc --QuotaActionCode vpc_quota_instances_num "
        "--DesireValue 1 --Reason gpu-fleet --Dimensions.1.Key regionId --Dimensions.1.Value cn-shenzhen"
    )
    eip = "--ProductCode eip --QuotaActionCode eip_example --DesireValue 21"
    rows = (
        Row("VPCs", PROBLEM, "", full, remedy=vpc),
        Row("elastic addresses", UNCHECKED, "", full),
        Row("elastic addresses", NOTE, "needs 1; in use most: 20 of 20", tight, remedy=eip),
    )

    assert wrong_of(*rows) == []
    asked = [call for action, call in full.asked if action == "ListProductQuotas"]
    regions = {(call["Dimensions.1.Key"], call["Dimensions.1.Value"]) for call in asked}
    assert regions == {("regionId", "cn-shenzhen")}


def test_a_denial_is_a_line_that_names_the_permission_and_hides_no_other_answer():
    denied, unseen = account(ListProductQuotas=Refusal("NoPermission")), account(GetRole=Refusal())
    line = "could not be checked: denied quotas:ListProductQuotas"
    codes = ("Forbidden.RAM", "NoPermission", "NotAuthorized")
    rows = (
        *(Row("VPCs", UNCHECKED, line, account(ListProductQuotas=Refusal(code))) for code in codes),
        Row("image", FINE, "", denied),
        Row("role AliyunServiceRoleForAutoScaling", UNCHECKED, "", unseen),
        Row("flow logs", FINE, "", unseen),
    )

    assert wrong_of(*rows) == []


# zones


def test_a_zone_sells_what_a_pool_asks_for():
    def stocked(**zones: str) -> Account:
        return account(DescribeAvailableResource=stock(**zones))

    def advised(answer: Any) -> Account:
        return account(DescribeSpotAdvice=answer)

    types, spot = "types of dev", stack(pools=[pool(market="spot")])
    none, one = stocked(d="WithoutStock", e="WithoutStock"), stocked(d="WithStock", e="WithoutStock")
    rows = (
        Row(types, FINE, "", stocked(d="WithStock", e="WithStock")),
        Row(types, NOTE, "", one, remedy="in stock in cn-shenzhen-d"),
        Row(types, NOTE, "", none, remedy="in stock in no zone"),
        Row(types, PROBLEM, "", stocked(f="WithStock"), remedy="in stock in cn-shenzhen-f"),
        Row(types, PROBLEM, "", stocked(), remedy="in stock in no zone"),
        Row("spot for dev", FINE, "interrupted 0-3%", advised(advice("0-3%")), spot),
        Row("spot for dev", NOTE, "interrupted 10-100%", advised(advice("10-100%")), spot),
        Row("spot for dev", NOTE, "none sold", advised({}), spot),
    )

    assert wrong_of(*rows) == []


def test_a_reservation_is_active_large_enough_in_its_zone_and_ends_when_the_file_says():
    def assured(status: str, total: int, zone: str = "cn-shenzhen-d", **more: Any) -> Account:
        resource = {"AllocatedResource": [{"InstanceType": G7, "TotalAmount": total, "zoneId": zone}]}
        items = {"ElasticityAssuranceItem": [{"Status": status, "AllocatedResources": resource, **more}]}
        return account(DescribeElasticityAssurances={"ElasticityAssuranceSet": items})

    def ending(at: str) -> Account:
        return assured("Active", 2, EndTime=at)

    by = {"reservation_id": "eap-wz90000000000000000", "zones": ["cn-shenzhen-d"]}
    held = [{"id": "eap-1", "zone": "cn-shenzhen-d", "count": 2, "until": "2027-03-31T16:00Z"}]
    one = about(
        "reservation of dev",
        stack(pools=[pool(market="reservation", **by)]),
        (FINE, "", assured("Active", 2)),
        (PROBLEM, "", assured("Active", 1)),
        (PROBLEM, "", assured("Released", 2)),
        (PROBLEM, "in cn-shenzhen-d, and it is in", assured("Active", 2, "cn-shenzhen-e")),
        (PROBLEM, "", account(DescribeElasticityAssurances={})),
    )
    resource = {"AllocatedResource": [{"InstanceType": G7, "TotalAmount": 2, "zoneId": "cn-shenzhen-d"}]}
    items = {"CapacityReservationItem": [{"Status": "Active", "AllocatedResources": resource}]}
    other = about(
        "reservation of dev",
        stack(pools=[pool(market="reservation", **by | {"reservation_id": "crp-wz90000000000000000"})]),
        (FINE, "Active, 2 of", account(DescribeCapacityReservations={"CapacityReservationSet": items})),
    )
    each = about(
        "reservation eap-1 of dev",
        stack(pools=[pool(market="reservation", reservations=held)]),
        (FINE, "", ending("2027-03-31T16:00:00Z")),
        (PROBLEM, "ends 2027-03-30T16:00Z, and", ending("2027-03-30T16:00Z")),
    )

    assert wrong_of(*one, *other, *each) == []


# what the account must have


def imaged(*images: dict[str, Any], **more: Any) -> Account:
    return account(DescribeImages={"Images": {"Image": list(images)}} | more)


def test_the_image_that_would_boot_now_is_ours_valid_and_small_enough():
    following = stack(image={"id": IMAGE["ImageId"], "base_id": "m-2", "mode": "baked"})
    built = {"ImageName": "gpu-fleet-test_built_2", "ImageId": "m-built", "CreationTime": "2"}
    until = "m-wz90000000000000000 (gpu-fleet-7), bootstrapped until the first build"
    too_large = "has 900 GiB, more than a pool's volume_gib of 200"
    named = about(
        "image",
        None,
        (PROBLEM, "belongs to others, not to this account", imaged(IMAGE | {"ImageOwnerAlias": "others"})),
        (PROBLEM, "is Creating", imaged(IMAGE | {"Status": "Creating"})),
        (PROBLEM, "is arm64", imaged(IMAGE | {"Architecture": "arm64"})),
        (PROBLEM, too_large, imaged(IMAGE | {"Size": 900})),
        (PROBLEM, "m-wz90000000000000000 is not in cn-shenzhen", imaged()),
    )
    followed = about(
        "image",
        following,
        (FINE, "m-built (gpu-fleet-test_built_2), baked", imaged(IMAGE | built, TotalCount=1)),
        (FINE, until, imaged(IMAGE, TotalCount=1)),
    )

    assert wrong_of(*named, *followed) == []


def test_name_key_and_credentials_are_the_stacks():
    def named(region: str) -> Seen:
        return Seen(s3=Buckets(**{f"gpu_fleet_test_records_{ID}": region}))

    other = {"AccountId": "6543210987654321", "Arn": "acs:ram::6543210987654321:user/test"}
    stranger = f"the credentials are of 6543210987654321, the stack belongs to {ID}"
    dying = account(DescribeKey={"KeyMetadata": {"KeyId": "key-1", "KeyState": "PendingDeletion"}})
    cancel = "aliyun kms CancelKeyDeletion --region cn-shenzhen --KeyId key-1"
    off = account(GetKmsInstance={"KmsInstance": {"Status": "Disabled"}})
    rows = (
        Row("account", PROBLEM, stranger, account(GetCallerIdentity=other)),
        Row("name", FINE, "", named("cn-shenzhen")),
        Row("name", PROBLEM, "", named("cn-beijing"), remedy="name this stack otherwise"),
        Row("name", PROBLEM, "", named(ELSEWHERE), remedy="name this stack otherwise"),
        Row("KMS instance", PROBLEM, "", off),
        Row("key", PROBLEM, "", dying, remedy=cancel),
    )

    assert wrong_of(*rows) == []


PRIVATE = {"cidr": "10.0.0.0/16", "zones": ["cn-shenzhen-d"], "interface_endpoints": True}
HOME = {"kms_instance_id": "kst-szh0000000000000000", "home": True}


def test_what_is_not_opened_is_reported_with_what_opens_it():
    settings = stack(network=PRIVATE, storage=HOME)
    not_enabled, in_debt = ({"AccountStatus": status} for status in ("NotEnabled", "InDebt"))
    first = "put one of cn-shenzhen-f first in network.zones"
    table = (
        ("flow logs", {"GetFlowLogServiceStatus": {"Enabled": False}}, "aliyun vpc OpenFlowLogService"),
        ("KMS", {"DescribeAccountKmsStatus": not_enabled}, "aliyun kms OpenKmsService"),
        ("KMS", {"DescribeAccountKmsStatus": in_debt}, "top up the account"),
        ("Simple Log Service", {"GetSlsService": {"Enabled": False}}, "aliyun sls OpenSlsService"),
        (
            "PrivateLink",
            {"CheckProductOpen": Refusal("ProductNotOpen")},
            "aliyun privatelink OpenPrivateLink",
        ),
        ("NAS extreme", {"DescribeZones": zones_of_nas()}, "open NAS at https://nasnext"),
        ("NAS extreme", {"DescribeZones": zones_of_nas("cn-shenzhen-f")}, first),
    )
    shut = Seen(s3=Buckets(refused="UserDisable"))
    rows = [
        Row("OSS", PROBLEM, "", shut, None, "activate OSS, or pay the amount due"),
        Row("PrivateLink", UNCHECKED, "", account(CheckProductOpen=Refusal()), settings),
    ]
    for subject, answers, remedy in table:
        rows.append(Row(subject, FINE, stack=settings))
        rows.append(Row(subject, PROBLEM, "", account(**answers), settings, remedy))

    assert wrong_of(*rows) == []


def test_a_missing_role_is_reported_with_the_command_that_makes_it():
    def without(name):
        def answer(asked):
            missing = Refusal("EntityNotExist.Role", "no such role")
            return missing if asked["RoleName"] == name else {"Role": {"RoleName": name}}

        return account(GetRole=answer)

    scaling, nas = "AliyunServiceRoleForAutoScaling", "AliyunServiceRoleForNasEncryption"
    disks = "AliyunECSImageImportDefaultRole"
    imported = stack(image={"id": IMAGE["ImageId"], "disk": "image/gpu_fleet_image/recipe/versions.toml"})
    linked = "aliyun resourcemanager CreateServiceLinkedRole --ServiceName"
    no_group = "is missing: Auto Scaling makes no group"
    rows = (
        Row(f"role {scaling}", PROBLEM, no_group, without(scaling), remedy=f"{linked} ess.aliyuncs.com"),
        Row(f"role {disks}", PROBLEM, "ECS cannot read image.disk", without(disks), imported),
        Row(f"role {nas}", NOTE, "", without(nas), stack(storage=HOME), remedy="encryption.nas.aliyuncs.com"),
    )

    assert wrong_of(*rows) == []


def test_the_way_to_oss_is_reported_before_anything_is_uploaded():
    def from_here(*hosts: str, s3: Buckets) -> Seen:
        return Seen(s3=s3, reachable=frozenset(hosts))

    inner, public = "oss-cn-shenzhen-internal.aliyuncs.com", "oss-cn-shenzhen.aliyuncs.com"
    inside = f"OSS_ENDPOINT=https://{inner}"
    ours, shut = Buckets(ours="cn-shenzhen"), Buckets(SHUT, ours="cn-shenzhen")
    subject, let_in = "OSS from here", f"{public} answers, and lets this account in"
    inner_answers, neither = f"the inner endpoint {inner} answers", f"neither {public} nor {inner} answers"
    refuses, unknown = f"{public} refuses this account objects", f"{public} answers; no bucket says"
    rows = (
        Row(subject, FINE, inner_answers, from_here(inner, public, s3=Buckets()), remedy=inside),
        Row(subject, FINE, let_in, from_here(public, s3=ours)),
        Row(subject, PROBLEM, refuses, from_here(public, s3=shut), remedy=inside),
        Row(subject, NOTE, unknown, from_here(public, s3=Buckets()), remedy=inside),
        Row(subject, PROBLEM, neither, from_here(s3=Buckets()), remedy=inside),
    )

    assert wrong_of(*rows) == []


def test_a_sender_is_an_address_that_direct_mail_verified():
    def sender(name="fleet@mail.example.com", account_status="0", domain_status="0") -> Account:
        row = {"AccountName": name, "AccountStatus": account_status, "DomainStatus": domain_status}
        return account(QueryMailAddressByParam={"data": {"mailAddress": [row]}})

    rows = about(
        "sender",
        stack(notify={"users": {"ada": "ada@example.com"}, "sender": "fleet@mail.example.com"}),
        (FINE, "is a sender address", sender()),
        (PROBLEM, "is no sender address", sender("fleet@mail.example.com.org")),
        (PROBLEM, "is frozen", sender(account_status="1")),
        (PROBLEM, "a domain that is not verified", sender(domain_status="1")),
        (UNCHECKED, "denied dm:QueryMailAddressByParam", account(QueryMailAddressByParam=Refusal())),
    )

    assert wrong_of(*rows) == []


def test_a_webhooks_secret_is_there_and_not_read():
    def secret(answer: Any) -> Account:
        return account(DescribeSecret=answer)

    rows = about(
        "webhook rooms/vision",
        stack(notify={"webhooks": [{"kind": "dingtalk", "secret": "rooms/vision"}]}),
        (FINE, "its secret exists", secret({"SecretName": "rooms/vision"})),
        (PROBLEM, "is being deleted", secret({"PlannedDeleteTime": "2026-12-01T00:00:00Z"})),
        (PROBLEM, "there is no secret rooms/vision", secret(Refusal("Forbidden.ResourceNotFound", "no"))),
    )

    assert wrong_of(*rows) == []
    assert "GetSecretValue" not in {action for row in rows for action, _ in row.account.asked}


# what belongs to somebody else

VPC, VSWITCHES = EXISTING_VSWITCHES["vpc_id"], EXISTING_VSWITCHES["subnets"]
NAT = {"NextHopType": "NatGateway", "NextHopId": "ngw-wz90000000000000000"}
KMS = {"kms_instance_id": "kst-szh0000000000000000"}


def guest(*, internet: bool = True, **existing: Any) -> Stack:
    """Return a stack in the VPC, with these file systems or buckets."""
    network = {"zones": list(VSWITCHES), "existing": EXISTING_VSWITCHES | {"internet": internet}}
    return stack(network=network, storage=KMS | ({"existing": existing} if existing else {}))


def snat(*entries: dict[str, str]) -> dict[str, Any]:
    return {"SnatTableEntries": {"SnatTableEntry": list(entries)}, "TotalCount": len(entries)}


def foreign_vpc(vswitch: Any = None, hops: Any = (NAT,), status="Available", **changes: Any) -> Account:
    """Return an account with the VPC: each vSwitch in its zone, with these next hops and with SNAT."""
    zones = {known: zone for zone, known in VSWITCHES.items()}

    def vswitch_of(asked):
        known = asked["VSwitchId"]
        there = {"VSwitchId": known, "VpcId": VPC, "ZoneId": zones[known], "CidrBlock": "10.77.0.0/24"}
        there |= {"AvailableIpAddressCount": 250, "RouteTable": {"RouteTableId": "vtb-wz9"}}
        return {"VSwitches": {"VSwitch": [there | (vswitch or {})]}}

    route = {"Status": status, "NextHops": {"NextHop": list(hops)}}
    answers = {
        "DescribeVpcs": {"Vpcs": {"Vpc": [{"VpcId": VPC, "CidrBlock": "10.77.0.0/16"}]}},
        "DescribeVSwitches": vswitch_of,
        "DescribeRouteEntryList": {"RouteEntrys": {"RouteEntry": [route] if hops else []}},
        "DescribeSnatTableEntries": snat(
            *({"SourceVSwitchId": known, "SourceCIDR": ""} for known in VSWITCHES.values())
        ),
    }
    return account(**answers | changes)


def test_an_existing_vpc_with_its_routes_is_fine_and_needs_no_quota_of_networks():
    answers = found(guest(), foreign_vpc())
    routed = "has its routes and 250 free addresses"

    assert (answers["VPC"].rating, answers["VPC"].says) == (FINE, f"{VPC} has 10.77.0.0/16")
    for zone in VSWITCHES:
        vswitch = answers[f"vSwitch of {zone}"]
        assert (vswitch.rating, vswitch.says.endswith(routed)) == (FINE, True)
    assert {"VPCs", "elastic addresses"} & answers.keys() == set()


def test_a_vswitch_of_an_existing_vpc_lies_in_its_zone_and_leads_out():
    def translated(*entries: dict[str, str]) -> Account:
        return foreign_vpc(DescribeSnatTableEntries=snat(*entries))

    to_internet = {"NextHopType": "Ipv4Gateway", "NextHopId": "ipv4gw-1"}
    public_alone = "reaches 0.0.0.0/0 by an IPv4 gateway, which answers public addresses alone"
    no_snat = "is in no SNAT entry of ngw-wz90000000000000000"
    table = (
        ("has no route to 0.0.0.0/0", foreign_vpc(hops=())),
        ("has no route to 0.0.0.0/0", foreign_vpc(status="Pending")),
        (public_alone, foreign_vpc(hops=[to_internet])),
        (no_snat, translated()),
        (no_snat, translated({"SourceCIDR": "10.78.0.0/16"})),
        ("is in vpc-other", foreign_vpc({"VpcId": "vpc-other"})),
        ("is in cn-shenzhen-f", foreign_vpc({"ZoneId": "cn-shenzhen-f"})),
    )
    subject, vswitch = "vSwitch of cn-shenzhen-d", VSWITCHES["cn-shenzhen-d"]
    remedy = "network.existing.subnets.cn-shenzhen-d"
    rows = (
        *(Row(subject, PROBLEM, f"{vswitch} {says}", cloud, guest(), remedy=remedy) for says, cloud in table),
        Row(subject, FINE, "", translated({"SourceCIDR": "10.77.0.0/16"}), guest()),
        Row(subject, FINE, "", foreign_vpc(hops=()), guest(internet=False)),
    )

    assert wrong_of(*rows) == []


def test_snat_entries_are_read_to_the_last_page():
    def entries(asked):
        own = [{"SourceVSwitchId": known} for known in VSWITCHES.values()]
        page = own if asked["PageNumber"] == "2" else [{"SourceVSwitchId": "vsw-other"}] * 50
        return snat(*page) | {"TotalCount": 52}

    paged = foreign_vpc(DescribeSnatTableEntries=entries)

    assert wrong_of(Row("vSwitch of cn-shenzhen-d", FINE, "", paged, guest())) == []


# Homes and scratch of somebody else.
NAS, CPFS = "31a8e4b0c2", "cpfs-00151a2b3c4d5e6f"
TO_ALL = {"SourceCidrIp": "10.77.0.0/16", "RWAccess": "RDWR"}


def with_nas(rule: Any = None, target: Any = None, **files: Any) -> Account:
    """Return an account with an encrypted NAS and its mount target in the VPC, whose group has this rule."""
    there = {"FileSystemId": NAS, "FileSystemType": "standard", "EncryptType": 1} | files
    standing = {"MountTargetDomain": "a.nas.aliyuncs.com", "VpcId": VPC, "Status": "Active"}
    standing |= {"AccessGroup": "lab"} | (target or {})
    return foreign_vpc(
        DescribeFileSystems={"FileSystems": {"FileSystem": [there]}},
        DescribeMountTargets={"MountTargets": {"MountTarget": [standing]}},
        DescribeAccessRules={"AccessRules": {"AccessRule": [rule or TO_ALL]}},
    )


def test_what_belongs_to_somebody_else_is_there_and_usable():
    def buckets(**regions: str) -> Seen:
        return Seen(foreign_vpc(), Buckets(**regions))

    no_vpc = foreign_vpc(DescribeVpcs={"Vpcs": {"Vpc": []}})
    no_vswitch = foreign_vpc(DescribeVSwitches={"VSwitches": {"VSwitch": []}})
    no_nas = foreign_vpc(DescribeFileSystems=Refusal("InvalidFileSystem.NotFound", "no"))
    cpfs = with_nas(FileSystemId=CPFS, FileSystemType="cpfs", EncryptType=0)
    lab, home = guest(buckets={"lab-datasets": {}}), guest(home={"id": NAS})
    scratch = guest(scratch={"id": CPFS})
    shut = f"the access group lab of {NAS} does not let 10.77.0.0/24 write"
    rule = (
        "its owner runs: aliyun nas CreateAccessRule --RegionId cn-shenzhen --AccessGroupName lab "
        "--FileSystemType standard --SourceCidrIp 10.77.0.0/24 --RWAccessType RDWR --Priority 1"
    )
    elsewhere = TO_ALL | {"SourceCidrIp": "10.78.0.0/16"}
    half_open = (TO_ALL | {"RWAccess": "RDONLY"}, elsewhere, {"RWAccess": "RDWR"})
    no_target, bucket = f"{NAS} has no active mount target in {VPC}", "bucket lab-datasets"
    vswitch = f"{VSWITCHES['cn-shenzhen-d']} is not in cn-shenzhen"
    rows = (
        Row("VPC", PROBLEM, f"{VPC} is not in cn-shenzhen", no_vpc, guest()),
        Row("vSwitch of cn-shenzhen-d", PROBLEM, vswitch, no_vswitch, guest()),
        Row(bucket, FINE, "is in cn-shenzhen", buckets(lab_datasets="cn-shenzhen"), lab),
        Row(bucket, PROBLEM, "is in cn-beijing", buckets(lab_datasets="cn-beijing"), lab),
        Row(bucket, PROBLEM, "there is no such bucket", buckets(), lab),
        Row("homes", FINE, f"{NAS} is encrypted, and lets the stack's vSwitches in", with_nas(), home),
        *(Row("homes", PROBLEM, shut, with_nas(half), home, remedy=rule) for half in half_open),
        Row("homes", PROBLEM, f"{NAS} is not encrypted", with_nas(EncryptType=0), home),
        Row("homes", PROBLEM, no_target, with_nas(target={"VpcId": "vpc-other"}), home),
        Row("homes", PROBLEM, no_target, with_nas(target={"Status": "Inactive"}), home),
        Row("homes", PROBLEM, f"{NAS} is not in cn-shenzhen", no_nas, home),
        Row("scratch", FINE, f"{CPFS} has a mount target in {VPC}", cpfs, scratch),
    )

    assert wrong_of(*rows) == []


# the command and its client


def test_the_command_shows_every_answer_of_a_shipped_stack_or_one_line_why_there_is_none(monkeypatch):
    def run(client):
        monkeypatch.setattr(alicloud, "Alicloud", client)
        done = CliRunner().invoke(preflight, ["alicloud-dev"])
        return done.exit_code, " ".join(done.output.split())

    with serving(account(DescribeAccountAttributes=limits(1))) as asked:
        code, said = run(lambda region: asked)
    nowhere, silent = run(lambda region: asked)  # the server is gone
    stranger, how = run(lambda region: Alicloud(region, {}))

    assert (code, nowhere, stranger) == (1, 3, 3)
    assert "postpaid: ask for " in said
    assert "could not be checked, so nothing else was: GetCallerIdentity: 127.0.0.1:" in silent
    assert "Signature" not in silent
    assert "you need your own access key of Alibaba Cloud: set ALIBABA_CLOUD_ACCESS_KEY_ID and " in how


def test_a_client_is_kept_until_the_session_is_renewed(monkeypatch):
    """The SDK takes longer to create a client than to make a call."""
    cloud, made = account(), []
    monkeypatch.setattr(session, "AcsClient", lambda **options: made.append(options) or AcsClient(**options))
    with serving(cloud) as asking:
        for key in ("test", "test", "renewed"):
            asking._credentials._environ[KEY_ID] = key
            asking.ask("sts", "GetCallerIdentity")

    assert [parameters["AccessKeyId"] for _, parameters in cloud.asked] == ["test", "test", "renewed"]
    assert len(made) == 2


def test_instances_that_are_older_than_the_user_role_of_their_pool_are_named():
    def started(name, at):
        tags = {"gpu-fleet:stack": "test", "gpu-fleet:pool": "dev"}
        tagged = [{"TagKey": key, "TagValue": value} for key, value in tags.items()]
        return {"InstanceId": name, "CreationTime": at, "Tags": {"Tag": tagged}}

    running = [started("i-old", "2026-11-25T23:59Z"), started("i-new", "2026-11-26T00:01Z")]
    listed = {"DescribeInstances": {"Instances": {"Instance": running}, "TotalCount": 2}}
    role = {"Role": {"RoleName": "a role", "CreateDate": "2026-11-26T00:00:30Z"}}
    old = found(stack(), account(GetRole=role, **listed))["instances"]
    without = found(stack(), account(GetRole=Refusal("EntityNotExist.Role", "no"), **listed))["instances"]

    assert (old.rating, old.says.partition(":")[0]) == (PROBLEM, "i-old")
    assert without.says.startswith("i-new, i-old: older than the user role of their pool")
