"""Is there room on Alibaba Cloud: what each answer becomes; the official client against a local server."""

from typing import Any

import pytest
from aliyunsdkcore.client import AcsClient
from botocore.exceptions import ClientError
from click.testing import CliRunner

from stacks.calls import alicloud as calls
from stacks.calls.alicloud import Alicloud
from stacks.preflight import alicloud
from stacks.preflight.command import preflight
from stacks.preflight.findings import Finding, Rating
from stacks.settings import Stack
from tests.stacks.alicloud_account import Account, Refusal, serving
from tests.stacks.alicloud_examples import pool, stack
from tests.stacks.edits import EXISTING_VSWITCHES

ID = "1234567890123456"
IMAGE = {
    "ImageId": "m-wz90000000000000000",
    "ImageName": "gpu-fleet-7",
    "ImageOwnerAlias": "self",
    "Status": "Available",
    "Architecture": "x86_64",
    "Size": 100,
}


def limits(postpaid: int, used: int = 0, spot: int = 10_000) -> dict[str, Any]:
    values = {
        "max-postpaid-instance-vcpu-count": postpaid,
        "used-postpaid-instance-vcpu-count": used,
        "max-spot-instance-vcpu-count": spot,
        "used-spot-instance-vcpu-count": 0,
    }
    items = [
        {"AttributeName": name, "AttributeValues": {"ValueItem": [{"Value": str(value)}]}}
        for name, value in values.items()
    ]
    return {"AccountAttributeItems": {"AccountAttributeItem": items}}


def center(total: float, used: float):
    """Quota Center lists the quota that is asked for."""

    def answer(asked):
        code = asked.get("QuotaActionCode", "eip_example")
        return {
            "Quotas": [
                {
                    "QuotaActionCode": code,
                    "QuotaDescription": "most",
                    "TotalQuota": total,
                    "TotalUsage": used,
                }
            ]
        }

    return answer


def stock(**zones: str):
    """The type that is asked for, by zone (``d`` for cn-shenzhen-d)."""

    def answer(asked):
        return {
            "AvailableZones": {
                "AvailableZone": [
                    {
                        "ZoneId": f"cn-shenzhen-{zone}",
                        "AvailableResources": {
                            "AvailableResource": [
                                {
                                    "Type": "InstanceType",
                                    "SupportedResources": {
                                        "SupportedResource": [
                                            {
                                                "Value": asked["InstanceType"],
                                                "Status": "Available",
                                                "StatusCategory": category,
                                            }
                                        ]
                                    },
                                }
                            ]
                        },
                    }
                    for zone, category in zones.items()
                ]
            }
        }

    return answer


def advice(rate: str) -> dict[str, Any]:
    resource = {"InstanceType": "ecs.gn7i-c8g1.2xlarge", "InterruptRateDesc": rate}
    zone = {
        "ZoneId": "cn-shenzhen-d",
        "AvailableSpotResources": {"AvailableSpotResource": [resource]},
    }
    return {"AvailableSpotZones": {"AvailableSpotZone": [zone]}}


OPEN, SHUT = "NoSuchKey", "PublicEndpointForbidden"
ELSEWHERE = "The bucket you are attempting to access must be addressed using the specified endpoint."


class Buckets:
    """OSS as boto3 shows it: bucket -> its region, and what a read of nothing is answered with."""

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
    """API DescribeZones of NAS; a zone that sells nothing of the kind has no instance types."""
    rows = [
        {"ZoneId": zone, "InstanceTypes": {"InstanceType": [{"StorageType": "advance"}]}} for zone in zones
    ]
    return {"Zones": {"Zone": [*rows, {"ZoneId": "cn-shenzhen-x", "InstanceTypes": {"InstanceType": []}}]}}


def account(**changes: Any) -> Account:
    """An account with room for anything, with some answers replaced."""
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


def look(settings: Stack, cloud: Account, reachable=lambda host: True, s3=None) -> dict[str, Finding]:
    with serving(cloud) as asked:
        found = alicloud.look(settings, asked, reachable, s3 or Buckets(ours="cn-shenzhen"))
        return {finding.subject: finding for finding in found}


def test_where_there_is_room_every_answer_is_fine_and_every_request_was_signed():
    cloud = account()

    found = look(stack(), cloud)

    assert found.pop("activation").rating is Rating.NOTE, "no call tells"
    assert {finding.rating for finding in found.values()} == {Rating.FINE}
    assert list(found) == [
        "account",
        "role AliyunServiceRoleForAutoScaling",
        "role AliyunECSDiskEncryptDefaultRole",
        "flow logs",
        "KMS",
        "Simple Log Service",
        "OSS",
        "OSS from here",
        "name",
        "vCPUs for dev, postpaid",
        "elastic addresses",
        "VPCs",
        "types of dev",
        "image",
        "KMS instance",
        "key",
        "instances",
    ]
    assert cloud.unsigned == []


@pytest.mark.parametrize(
    ("allowed", "used", "rating"),
    [(16, 0, Rating.FINE), (16, 1, Rating.NOTE), (15, 0, Rating.PROBLEM)],
    ids=["enough", "perhaps-its-own-use", "too-few"],
)
def test_virtual_cpus_are_held_to_the_accounts_limit(allowed, used, rating):
    finding = look(stack(), account(DescribeAccountAttributes=limits(allowed, used)))[
        "vCPUs for dev, postpaid"
    ]

    assert finding.rating is rating
    assert finding.says == f"needs 16, {used} in use, {allowed} allowed"


def test_a_spot_pool_has_a_limit_of_its_own():
    pools = [pool(market="spot", on_demand_base=1)]

    found = look(stack(pools=pools), account(DescribeAccountAttributes=limits(10_000, spot=4)))

    assert found["vCPUs for dev, postpaid"].rating is Rating.FINE
    assert found["vCPUs for dev, spot"].rating is Rating.PROBLEM
    assert found["vCPUs for dev, spot"].says.startswith("needs 8,")


def test_a_limit_that_is_not_reported_is_not_guessed():
    finding = look(stack(), account(DescribeAccountAttributes={}))["vCPUs for dev, postpaid"]

    assert finding.rating is Rating.UNCHECKED
    assert "DescribeAccountAttributes says no max-postpaid-instance-vcpu-count" in finding.says


def test_a_full_quota_is_reported_with_the_command_that_asks_for_more():
    found = look(stack(), account(ListProductQuotas=center(0, 0)))

    assert found["VPCs"].rating is Rating.PROBLEM
    assert found["VPCs"].remedy == (
        "aliyun quotas CreateQuotaApplication --ProductCode vpc --QuotaActionCode vpc_quota_instances_num "
        "--DesireValue 1 --Reason gpu-fleet --Dimensions.1.Key regionId --Dimensions.1.Value cn-shenzhen"
    )
    assert found["elastic addresses"].rating is Rating.UNCHECKED


def test_a_tight_quota_of_addresses_is_noted_with_the_command_that_asks_for_more():
    finding = look(stack(), account(ListProductQuotas=center(20, 20)))["elastic addresses"]

    assert finding.rating is Rating.NOTE
    assert finding.says == "needs 1; in use most: 20 of 20"
    assert "--ProductCode eip --QuotaActionCode eip_example --DesireValue 21" in finding.remedy


def test_quota_center_is_asked_about_the_stacks_region_and_not_about_its_own():
    cloud = account()

    look(stack(), cloud)

    asked = [parameters for action, parameters in cloud.asked if action == "ListProductQuotas"]
    assert asked
    assert all(
        (call["Dimensions.1.Key"], call["Dimensions.1.Value"]) == ("regionId", "cn-shenzhen")
        for call in asked
    )


@pytest.mark.parametrize("code", ["Forbidden.RAM", "NoPermission", "NotAuthorized"])
def test_a_denied_quota_is_a_line_that_names_the_permission_and_hides_no_other_answer(code):
    found = look(stack(), account(ListProductQuotas=Refusal(code)))

    assert found["VPCs"].rating is Rating.UNCHECKED
    assert found["VPCs"].says == "could not be checked: denied quotas:ListProductQuotas"
    assert found["image"].rating is Rating.FINE


@pytest.mark.parametrize(
    ("zones", "rating", "remedy"),
    [
        ({"d": "WithStock", "e": "WithStock"}, Rating.FINE, ""),
        ({"d": "WithStock", "e": "WithoutStock"}, Rating.NOTE, "in stock in cn-shenzhen-d"),
        ({"d": "WithoutStock", "e": "WithoutStock"}, Rating.NOTE, "in stock in no zone"),
        ({"f": "WithStock"}, Rating.PROBLEM, "in stock in cn-shenzhen-f"),
        ({}, Rating.PROBLEM, "in stock in no zone"),
    ],
    ids=["everywhere", "in-one", "out-of-stock", "elsewhere", "nowhere"],
)
def test_a_type_must_be_sold_in_a_zone_of_the_pool(zones, rating, remedy):
    finding = look(stack(), account(DescribeAvailableResource=stock(**zones)))["types of dev"]

    assert finding.rating is rating
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("answer", "rating", "says"),
    [
        (advice("0-3%"), Rating.FINE, "interrupted 0-3%"),
        (advice("10-100%"), Rating.NOTE, "interrupted 10-100%"),
        ({}, Rating.NOTE, "none sold"),
    ],
    ids=["calm", "stormy", "none"],
)
def test_spot_instances_that_are_often_interrupted_are_worth_a_note(answer, rating, says):
    found = look(stack(pools=[pool(market="spot")]), account(DescribeSpotAdvice=answer))

    assert found["spot for dev"].rating is rating
    assert says in found["spot for dev"].says


def assurance(status: str, total: int) -> dict[str, Any]:
    resource = {"InstanceType": "ecs.gn7i-c8g1.2xlarge", "TotalAmount": total}
    item = {"Status": status, "AllocatedResources": {"AllocatedResource": [resource]}}
    return {"ElasticityAssuranceSet": {"ElasticityAssuranceItem": [item]}}


@pytest.mark.parametrize(
    ("answer", "rating"),
    [
        (assurance("Active", 2), Rating.FINE),
        (assurance("Active", 1), Rating.PROBLEM),
        (assurance("Released", 2), Rating.PROBLEM),
        ({}, Rating.PROBLEM),
    ],
    ids=["usable", "too-small", "released", "missing"],
)
def test_a_reservation_must_be_active_and_large_enough(answer, rating):
    reserved = pool(market="reservation", reservation_id="eap-wz90000000000000000", zones=["cn-shenzhen-d"])

    found = look(stack(pools=[reserved]), account(DescribeElasticityAssurances=answer))

    assert found["reservation of dev"].rating is rating


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ImageOwnerAlias": "others"}, "is of others, which is not ours"),
        ({"Status": "Creating"}, "is Creating"),
        ({"Architecture": "arm64"}, "is arm64"),
        ({"Size": 900}, "has 900 GiB, more than a pool's volume_gib of 200"),
    ],
    ids=["owner", "status", "architecture", "size"],
)
def test_an_image_must_be_ours_valid_and_small_enough(changes, says):
    finding = look(stack(), account(DescribeImages={"Images": {"Image": [IMAGE | changes]}}))["image"]

    assert finding.rating is Rating.PROBLEM
    assert says in finding.says


def test_the_image_that_a_stack_would_boot_now_is_its_newest_build():
    built = IMAGE | {"ImageName": "gpu-fleet-test_built_2", "ImageId": "m-built", "CreationTime": "2"}
    image = {"id": "m-wz90000000000000000", "base_id": "m-2", "mode": "baked"}

    def look_at(image_there):
        answer = {"Images": {"Image": [image_there]}, "TotalCount": 1}
        return look(stack(image=image), account(DescribeImages=answer))["image"]

    after, before = look_at(built), look_at(IMAGE)

    assert after.says == "m-built (gpu-fleet-test_built_2), baked"
    assert before.says.startswith("m-wz90000000000000000 (gpu-fleet-7), bootstrapped until the first build")


def test_an_image_that_is_not_there_is_a_problem():
    finding = look(stack(), account(DescribeImages={"Images": {"Image": []}}))["image"]

    assert finding.rating is Rating.PROBLEM
    assert finding.says == "m-wz90000000000000000 is not in cn-shenzhen"


def test_keys_need_a_connected_instance_and_to_be_enabled():
    cloud = account(
        GetKmsInstance={"KmsInstance": {"Status": "Disabled"}},
        DescribeKey={"KeyMetadata": {"KeyId": "key-1", "KeyState": "PendingDeletion"}},
    )

    found = look(stack(), cloud)

    assert found["KMS instance"].rating is Rating.PROBLEM
    assert found["key"].rating is Rating.PROBLEM
    assert found["key"].remedy.startswith("aliyun kms CancelKeyDeletion --region cn-shenzhen --KeyId key-1")


def test_credentials_of_another_account_are_the_first_problem():
    other = {"AccountId": "6543210987654321", "Arn": "acs:ram::6543210987654321:user/test"}

    finding = look(stack(), account(GetCallerIdentity=other))["account"]

    assert finding.rating is Rating.PROBLEM
    assert finding.says == f"the credentials are of 6543210987654321, the stack belongs to {ID}"


def test_the_command_shows_every_answer_of_a_shipped_stack(monkeypatch):
    with serving(account(DescribeAccountAttributes=limits(1))) as asked:
        monkeypatch.setattr(alicloud, "Alicloud", lambda region: asked)
        done = CliRunner().invoke(preflight, ["alicloud-dev"])

    assert done.exit_code == 1
    assert "postpaid: ask for " in " ".join(done.output.split())


def test_where_no_endpoint_answers_one_line_says_so(monkeypatch):
    with serving(account()) as asked:
        pass  # the server is gone
    monkeypatch.setattr(alicloud, "Alicloud", lambda region: asked)

    done = CliRunner().invoke(preflight, ["alicloud-dev"])

    assert done.exit_code == 3
    assert "could not be checked, and nothing else: GetCallerIdentity: 127.0.0.1:" in done.output
    assert "Signature" not in done.output


def test_a_client_is_kept_until_the_session_is_renewed(monkeypatch):
    """To make one takes the SDK longer than a call."""
    found, made = account(), []
    monkeypatch.setattr(calls, "AcsClient", lambda **options: made.append(options) or AcsClient(**options))
    with serving(found) as asking:
        for key in ("test", "test", "renewed"):
            asking._environ[calls.KEY_ID] = key
            asking.ask("sts", "GetCallerIdentity")

    assert [parameters["AccessKeyId"] for _, parameters in found.asked] == ["test", "test", "renewed"]
    assert len(made) == 2


def test_without_credentials_one_line_says_how_to_log_in(monkeypatch):
    monkeypatch.setattr(alicloud, "Alicloud", lambda region: Alicloud(region, {}))

    done = CliRunner().invoke(preflight, ["alicloud-dev"])

    assert done.exit_code == 3
    assert "no credentials; set ALIBABA_CLOUD_ACCESS_KEY_ID and " in " ".join(done.output.split())


# what an account must have opened


def without_role(name):
    def answer(asked):
        return (
            Refusal("EntityNotExist.Role", "no such role")
            if asked["RoleName"] == name
            else {"Role": {}} | {"RequestId": "r"}
        )

    return answer


def test_a_missing_service_linked_role_is_reported_with_the_command_that_makes_it():
    name = "AliyunServiceRoleForAutoScaling"

    finding = look(stack(), account(GetRole=without_role(name)))[f"role {name}"]

    assert finding.rating is Rating.PROBLEM
    assert finding.says == "is missing: Auto Scaling makes no group"
    assert finding.remedy == "aliyun resourcemanager CreateServiceLinkedRole --ServiceName ess.aliyuncs.com"


def test_flow_logs_that_are_not_activated_are_reported_with_the_command():
    finding = look(stack(), account(GetFlowLogServiceStatus={"Enabled": False}))["flow logs"]

    assert finding.rating is Rating.PROBLEM
    assert finding.remedy == "aliyun vpc OpenFlowLogService --RegionId cn-shenzhen"


def test_a_role_that_may_not_be_looked_at_hides_nothing_else():
    found = look(stack(), account(GetRole=Refusal()))

    assert found["role AliyunServiceRoleForAutoScaling"].rating is Rating.UNCHECKED
    assert found["flow logs"].rating is Rating.FINE


def test_an_imported_disk_needs_the_role_that_reads_it():
    image = {"id": "m-wz90000000000000000", "disk": "image/versions.toml"}

    assert "role AliyunECSImageImportDefaultRole" in look(stack(image=image), account())


INNER, PUBLIC = "oss-cn-shenzhen-internal.aliyuncs.com", "oss-cn-shenzhen.aliyuncs.com"


@pytest.mark.parametrize(
    ("answering", "s3", "rating", "says"),
    [
        ({INNER, PUBLIC}, Buckets(), Rating.FINE, f"the inner endpoint {INNER} answers"),
        ({PUBLIC}, Buckets(ours="cn-shenzhen"), Rating.FINE, f"{PUBLIC} answers, and lets this account in"),
        (
            {PUBLIC},
            Buckets(SHUT, ours="cn-shenzhen"),
            Rating.PROBLEM,
            f"{PUBLIC} refuses this account objects",
        ),
        ({PUBLIC}, Buckets(), Rating.NOTE, f"{PUBLIC} answers; no bucket says"),
        (set(), Buckets(), Rating.PROBLEM, f"neither {PUBLIC} nor {INNER} answers"),
    ],
    ids=["inside", "allowed", "shut", "unknown", "offline"],
)
def test_the_way_to_oss_is_reported_before_anything_is_uploaded(answering, s3, rating, says):
    finding = look(stack(), account(), answering.__contains__, s3)["OSS from here"]

    assert finding.rating is rating
    assert finding.says.startswith(says)
    if "lets this account in" not in says:
        assert "OSS_ENDPOINT=https://oss-cn-shenzhen-internal.aliyuncs.com" in finding.remedy


PRIVATE = {"cidr": "10.0.0.0/16", "zones": ["cn-shenzhen-d"], "interface_endpoints": True}
HOME = {"kms_instance_id": "kst-szh0000000000000000", "home": True}


@pytest.mark.parametrize(
    ("subject", "answers", "remedy"),
    [
        ("KMS", {"DescribeAccountKmsStatus": {"AccountStatus": "NotEnabled"}}, "aliyun kms OpenKmsService"),
        ("KMS", {"DescribeAccountKmsStatus": {"AccountStatus": "InDebt"}}, "top up the account"),
        ("Simple Log Service", {"GetSlsService": {"Enabled": False}}, "aliyun sls OpenSlsService"),
        (
            "PrivateLink",
            {"CheckProductOpen": Refusal("ProductNotOpen")},
            "aliyun privatelink OpenPrivateLink",
        ),
        ("NAS extreme", {"DescribeZones": zones_of_nas()}, "open NAS at https://nasnext"),
    ],
)
def test_an_unopened_service_is_reported_with_the_command_that_opens_it(subject, answers, remedy):
    settings = stack(network=PRIVATE, storage=HOME)

    assert look(settings, account())[subject].rating is Rating.FINE
    finding = look(settings, account(**answers))[subject]

    assert finding.rating is Rating.PROBLEM
    assert finding.remedy.startswith(remedy)


def test_oss_that_is_shut_is_a_problem_of_its_own():
    finding = look(stack(), account(), s3=Buckets(refused="UserDisable"))["OSS"]

    assert finding.rating is Rating.PROBLEM
    assert "open OSS, or pay what is owed" in finding.remedy


def test_a_denied_question_about_privatelink_is_no_answer():
    finding = look(stack(network=PRIVATE), account(CheckProductOpen=Refusal()))["PrivateLink"]

    assert finding.rating is Rating.UNCHECKED


def test_a_zone_that_sells_no_extreme_nas_is_reported_with_those_that_do():
    finding = look(stack(storage=HOME), account(DescribeZones=zones_of_nas("cn-shenzhen-f")))["NAS extreme"]

    assert finding.rating is Rating.PROBLEM
    assert finding.says == "cn-shenzhen-d does not sell it"
    assert finding.remedy == "put one of cn-shenzhen-f first in network.zones"


def test_roles_that_nas_makes_by_itself_are_worth_a_note():
    name = "AliyunServiceRoleForNasEncryption"

    finding = look(stack(storage=HOME), account(GetRole=without_role(name)))[f"role {name}"]

    assert finding.rating is Rating.NOTE
    assert finding.remedy.endswith("CreateServiceLinkedRole --ServiceName encryption.nas.aliyuncs.com")


@pytest.mark.parametrize(
    ("region", "rating"),
    [("cn-shenzhen", Rating.FINE), ("cn-beijing", Rating.PROBLEM), (ELSEWHERE, Rating.PROBLEM)],
    ids=["here", "there", "refused from here"],
)
def test_the_name_of_a_stack_in_another_region_is_refused(region, rating):
    bucket = f"gpu_fleet_test_records_{ID}"

    finding = look(stack(), account(), s3=Buckets(**{bucket: region}))["name"]

    assert finding.rating is rating
    assert (finding.remedy == "name this stack otherwise") is (rating is Rating.PROBLEM)


def test_what_no_call_answers_is_a_note_that_names_the_services():
    finding = look(stack(storage=HOME), account())["activation"]

    assert [name in finding.remedy for name in ("Function Compute", "CloudMonitor", "NAS")] == [True] * 3
    assert not [name for name in ("OSS", "Simple Log", "PrivateLink", "KMS") if name in finding.remedy]


def test_the_price_of_the_kms_instance_is_named():
    assert "500 USD a month" in look(stack(), account())["KMS instance"].says


MAILING = {"users": {"ada": "ada@example.com"}, "sender": "fleet@mail.example.com"}
ROOM = {"webhooks": [{"kind": "dingtalk", "secret": "rooms/vision"}]}


def sender(name="fleet@mail.example.com", account_status="0", domain_status="0"):
    row = {"AccountName": name, "AccountStatus": account_status, "DomainStatus": domain_status}
    return {"data": {"mailAddress": [row]}}


@pytest.mark.parametrize(
    ("answer", "rating", "says"),
    [
        (sender(), Rating.FINE, "is a sender address"),
        (sender("fleet@mail.example.com.org"), Rating.PROBLEM, "is no sender address"),
        (sender(account_status="1"), Rating.PROBLEM, "is frozen"),
        (sender(domain_status="1"), Rating.PROBLEM, "a domain that is not verified"),
        (Refusal(), Rating.UNCHECKED, "denied dm:QueryMailAddressByParam"),
    ],
    ids=["usable", "another", "frozen", "domain", "denied"],
)
def test_a_sender_is_an_address_that_direct_mail_verified(answer, rating, says):
    finding = look(stack(notify=MAILING), account(QueryMailAddressByParam=answer))["sender"]

    assert (finding.rating, bool(finding.remedy)) == (rating, rating is Rating.PROBLEM)
    assert says in finding.says


@pytest.mark.parametrize(
    ("answer", "rating", "says"),
    [
        ({"SecretName": "rooms/vision"}, Rating.FINE, "is there"),
        ({"PlannedDeleteTime": "2026-12-01T00:00:00Z"}, Rating.PROBLEM, "is being deleted"),
        (Refusal("Forbidden.ResourceNotFound", "no"), Rating.PROBLEM, "there is no secret rooms/vision"),
    ],
    ids=["there", "deleted", "missing"],
)
def test_a_webhooks_secret_is_there_and_not_read(answer, rating, says):
    cloud = account(DescribeSecret=answer)

    finding = look(stack(notify=ROOM), cloud)["webhook rooms/vision"]

    assert finding.rating is rating
    assert says in finding.says
    assert "GetSecretValue" not in [action for action, _ in cloud.asked]


# a VPC of somebody else's

VPC, VSWITCHES = EXISTING_VSWITCHES["vpc_id"], EXISTING_VSWITCHES["subnets"]
NAT = {"NextHopType": "NatGateway", "NextHopId": "ngw-wz90000000000000000"}


def guest(**existing: Any) -> Stack:
    network = {"zones": list(VSWITCHES), "existing": EXISTING_VSWITCHES | existing}
    return stack(network=network, storage={"kms_instance_id": "kst-szh0000000000000000"})


def foreign_vpc(vswitch: Any = None, hops: Any = (NAT,), status="Available", **changes: Any) -> Account:
    """An account with the VPC: each of its vSwitches in its zone, with these next hops and SNAT for each."""

    def vswitch_of(asked):
        zone = next(zone for zone, known in VSWITCHES.items() if known == asked["VSwitchId"])
        found = {"VSwitchId": asked["VSwitchId"], "VpcId": VPC, "ZoneId": zone, "CidrBlock": "10.77.0.0/24"}
        found |= {"AvailableIpAddressCount": 250, "RouteTable": {"RouteTableId": "vtb-wz9"}}
        return {"VSwitches": {"VSwitch": [found | (vswitch or {})]}}

    entries = [{"SourceVSwitchId": known, "SourceCIDR": ""} for known in VSWITCHES.values()]
    route = {"Status": status, "NextHops": {"NextHop": list(hops)}}
    answers = {
        "DescribeVpcs": {"Vpcs": {"Vpc": [{"VpcId": VPC, "CidrBlock": "10.77.0.0/16"}]}},
        "DescribeVSwitches": vswitch_of,
        "DescribeRouteEntryList": {"RouteEntrys": {"RouteEntry": [route] if hops else []}},
        "DescribeSnatTableEntries": {"SnatTableEntries": {"SnatTableEntry": entries}, "TotalCount": 2},
    }
    return account(**answers | changes)


def test_an_existing_vpc_with_its_routes_is_fine_and_needs_no_quota_of_networks():
    found = look(guest(), foreign_vpc())

    assert found["VPC"].says == f"{VPC} has 10.77.0.0/16"
    assert found["vSwitch of cn-shenzhen-e"].says.endswith("has its routes and 250 free addresses")
    assert {message.rating for message in found.values() if message.subject.startswith(("VPC", "vSw"))} == {
        Rating.FINE
    }
    assert {"VPCs", "elastic addresses"} & found.keys() == set()


@pytest.mark.parametrize(
    ("cloud", "says"),
    [
        (foreign_vpc(hops=()), "has no route to 0.0.0.0/0"),
        (foreign_vpc(status="Pending"), "has no route to 0.0.0.0/0"),
        (
            foreign_vpc(hops=({"NextHopType": "Ipv4Gateway", "NextHopId": "ipv4gw-1"},)),
            "reaches 0.0.0.0/0 by an IPv4 gateway, which answers public addresses alone",
        ),
        (
            foreign_vpc(
                DescribeSnatTableEntries={"SnatTableEntries": {"SnatTableEntry": []}, "TotalCount": 0}
            ),
            "is in no SNAT entry of ngw-wz90000000000000000",
        ),
        (foreign_vpc({"VpcId": "vpc-other"}), "lies in vpc-other"),
        (foreign_vpc({"ZoneId": "cn-shenzhen-f"}), "lies in cn-shenzhen-f"),
    ],
)
def test_a_vswitch_of_an_existing_vpc_must_lie_in_its_zone_and_lead_out(cloud, says):
    finding = look(guest(), cloud)["vSwitch of cn-shenzhen-d"]

    assert finding.rating is Rating.PROBLEM
    assert finding.says == f"{VSWITCHES['cn-shenzhen-d']} {says}"
    assert "network.existing.subnets.cn-shenzhen-d" in finding.remedy


@pytest.mark.parametrize(
    ("network", "rating"), [("10.77.0.0/16", Rating.FINE), ("10.78.0.0/16", Rating.PROBLEM)]
)
def test_an_snat_entry_may_be_for_a_network_that_holds_the_vswitch(network, rating):
    entries = {"SnatTableEntries": {"SnatTableEntry": [{"SourceCIDR": network}]}, "TotalCount": 1}

    found = look(guest(), foreign_vpc(DescribeSnatTableEntries=entries))

    assert found["vSwitch of cn-shenzhen-d"].rating is rating


def test_snat_entries_are_read_to_the_last_page():
    def entries(asked):
        own = [{"SourceVSwitchId": known} for known in VSWITCHES.values()]
        page = own if asked["PageNumber"] == "2" else [{"SourceVSwitchId": "vsw-other"}] * 50
        return {"SnatTableEntries": {"SnatTableEntry": page}, "TotalCount": 52}

    found = look(guest(), foreign_vpc(DescribeSnatTableEntries=entries))

    assert found["vSwitch of cn-shenzhen-d"].rating is Rating.FINE


def test_without_internet_a_vswitch_needs_no_way_out():
    assert look(guest(internet=False), foreign_vpc(hops=()))["vSwitch of cn-shenzhen-d"].rating is Rating.FINE


@pytest.mark.parametrize(
    ("changes", "subject", "says"),
    [
        ({"DescribeVpcs": {"Vpcs": {"Vpc": []}}}, "VPC", f"{VPC} is not in cn-shenzhen"),
        (
            {"DescribeVSwitches": {"VSwitches": {"VSwitch": []}}},
            "vSwitch of cn-shenzhen-d",
            f"{VSWITCHES['cn-shenzhen-d']} is not in cn-shenzhen",
        ),
    ],
)
def test_what_is_not_there_is_a_problem(changes, subject, says):
    finding = look(guest(), foreign_vpc(**changes))[subject]

    assert (finding.rating, finding.says) == (Rating.PROBLEM, says)


@pytest.mark.parametrize(
    ("regions", "rating", "says"),
    [
        ({"lab_datasets": "cn-shenzhen"}, Rating.FINE, "is in cn-shenzhen"),
        ({"lab_datasets": "cn-beijing"}, Rating.PROBLEM, "is in cn-beijing"),
        ({}, Rating.PROBLEM, "there is no such bucket"),
    ],
)
def test_an_existing_bucket_must_be_in_the_region(regions, rating, says):
    storage = {"kms_instance_id": "kst-szh0000000000000000"} | {"existing": {"buckets": {"lab-datasets": {}}}}

    finding = look(stack(storage=storage), account(), s3=Buckets(**regions))["bucket lab-datasets"]

    assert (finding.rating, finding.says) == (rating, says)


# file systems of somebody else's

NAS, CPFS = "31a8e4b0c2", "cpfs-00151a2b3c4d5e6f"
TO_ALL = {"SourceCidrIp": "10.77.0.0/16", "RWAccess": "RDWR"}


def borrowing(**existing: Any) -> Stack:
    network = {"zones": list(VSWITCHES), "existing": EXISTING_VSWITCHES}
    return stack(
        network=network, storage={"kms_instance_id": "kst-szh0000000000000000", "existing": existing}
    )


def with_nas(rule: Any = None, target: Any = None, **files: Any) -> Account:
    """An account with an encrypted NAS and its mount target in the VPC, whose group has this rule."""
    found = {"FileSystemId": NAS, "FileSystemType": "standard", "EncryptType": 1} | files
    standing = {"MountTargetDomain": "a.nas.aliyuncs.com", "VpcId": VPC, "Status": "Active"}
    standing |= {"AccessGroup": "lab"} | (target or {})
    return foreign_vpc(
        DescribeFileSystems={"FileSystems": {"FileSystem": [found]}},
        DescribeMountTargets={"MountTargets": {"MountTarget": [standing]}},
        DescribeAccessRules={"AccessRules": {"AccessRule": [rule or TO_ALL]}},
    )


def test_existing_homes_that_let_the_vswitches_write_are_fine():
    finding = look(borrowing(home={"id": NAS}), with_nas())["homes"]

    assert (finding.rating, finding.says) == (
        Rating.FINE,
        f"{NAS} is encrypted, and lets the stack's vSwitches in",
    )


@pytest.mark.parametrize(
    "rule", [TO_ALL | {"RWAccess": "RDONLY"}, TO_ALL | {"SourceCidrIp": "10.78.0.0/16"}, {"RWAccess": "RDWR"}]
)
def test_the_remedy_says_which_access_rule_is_missing(rule):
    finding = look(borrowing(home={"id": NAS}), with_nas(rule))["homes"]

    assert finding.rating is Rating.PROBLEM
    assert finding.says == f"the access group lab of {NAS} does not let 10.77.0.0/24 write"
    assert finding.remedy == (
        "its owner runs: aliyun nas CreateAccessRule --RegionId cn-shenzhen --AccessGroupName lab "
        "--FileSystemType standard --SourceCidrIp 10.77.0.0/24 --RWAccessType RDWR --Priority 1"
    )


@pytest.mark.parametrize(
    ("cloud", "says"),
    [
        (with_nas(EncryptType=0), f"{NAS} is not encrypted"),
        (with_nas(target={"VpcId": "vpc-other"}), f"{NAS} has no active mount target in {VPC}"),
        (with_nas(target={"Status": "Inactive"}), f"{NAS} has no active mount target in {VPC}"),
        (
            foreign_vpc(DescribeFileSystems=Refusal("InvalidFileSystem.NotFound", "no")),
            f"{NAS} is not in cn-shenzhen",
        ),
    ],
    ids=["in-the-clear", "another-vpc", "inactive", "missing"],
)
def test_what_keeps_instances_from_existing_homes_is_reported(cloud, says):
    finding = look(borrowing(home={"id": NAS}), cloud)["homes"]

    assert (finding.rating, finding.says) == (Rating.PROBLEM, says)
    assert finding.remedy


def test_an_existing_cpfs_needs_a_mount_target_and_no_encryption_which_it_takes_none_of():
    found = look(
        borrowing(scratch={"id": CPFS}), with_nas(FileSystemId=CPFS, FileSystemType="cpfs", EncryptType=0)
    )

    assert found["scratch"].says == f"{CPFS} has a mount target in {VPC}"


def test_instances_that_are_older_than_the_user_role_of_their_pool_are_named():
    def started(name, at):
        tags = {"gpu-fleet:stack": "test", "gpu-fleet:pool": "dev"}
        tagged = [{"TagKey": key, "TagValue": value} for key, value in tags.items()]
        return {"InstanceId": name, "CreationTime": at, "Tags": {"Tag": tagged}}

    running = [started("i-old", "2026-11-25T23:59Z"), started("i-new", "2026-11-26T00:01Z")]
    of_users = {"Role": {"RoleName": "a role", "CreateDate": "2026-11-26T00:00:30Z"}}
    listed = {"Instances": {"Instance": running}, "TotalCount": 2}

    old = look(stack(), account(DescribeInstances=listed, GetRole=of_users))["instances"]
    without = look(stack(), account(DescribeInstances=listed, GetRole=Refusal("EntityNotExist.Role", "no")))

    assert (old.rating, old.says.partition(":")[0]) == (Rating.PROBLEM, "i-old")
    assert without["instances"].says.startswith("i-new, i-old: older than the user role of their pool")
