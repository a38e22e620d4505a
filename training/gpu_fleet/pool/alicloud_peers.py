"""The machines in service of this machine's scaling group, on Alibaba Cloud."""

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from gpu_fleet.errors import LaunchError
from gpu_fleet.pool.alicloud_signature import Call, Credentials, signed_headers
from gpu_fleet.pool.identity import Identity, Machine, Metadata
from gpu_fleet.pool.members import in_order, members_in_service

# inside the network, which need have no way out: the list of Auto Scaling's endpoints has one in every region
ENDPOINT = "https://ess-vpc.{region}.aliyuncs.com"
VERSION = "2022-02-22"
PAGE_SIZE = 50
TIMEOUT_S = 20.0


def alicloud_peers(identity: Identity, machine: Machine) -> list[str]:
    """Private addresses of this machine's scaling group, itself among them, lowest first.

    One address when it belongs to no group. Raises LaunchError as its sister for AWS does. It asks what an
    instance may ask: ess:DescribeScalingInstances, with the credentials of its role.
    """
    keys = Metadata("alicloud").role_keys()
    credentials = Credentials(keys["AccessKeyId"], keys["AccessKeySecret"], keys["SecurityToken"])
    own = list(_instances(identity, credentials, {"InstanceIds.1": machine.instance_id}))
    if not own:
        return [machine.address]
    group = {"ScalingGroupId": own[0]["ScalingGroupId"]}
    members = {member["InstanceId"]: member for member in _instances(identity, credentials, group)}
    ready = members_in_service(list(members.values()), machine)
    return in_order([members[instance_id]["PrivateIpAddress"] for instance_id in ready])


def _instances(
    identity: Identity, credentials: Credentials, wanted: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """All pages of DescribeScalingInstances.

    https://www.alibabacloud.com/help/en/auto-scaling/developer-reference/api-ess-2022-02-22-describescalinginstances
    """
    seen, total, page = 0, 1, 1
    while seen < total:
        paging = {"PageNumber": str(page), "PageSize": str(PAGE_SIZE), "RegionId": identity.region}
        answer = _call(identity.region, credentials, {**wanted, **paging})
        found = answer.get("ScalingInstances", [])
        yield from found
        seen, page = seen + len(found), page + 1
        total = answer["TotalCount"] if found else 0


def _call(region: str, credentials: Credentials, parameters: dict[str, str]) -> dict[str, Any]:
    base = ENDPOINT.format(region=region)
    call = Call(base.partition("://")[2], "DescribeScalingInstances", VERSION, parameters)
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    headers = {**signed_headers(call, credentials, date, uuid.uuid4().hex), "accept": "application/json"}
    request = urllib.request.Request(f"{base}/?{call.query}", headers=headers)  # noqa: S310 - ENDPOINT is https
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as above
            found = json.load(answer)
            assert isinstance(found, dict)
            return found
    except urllib.error.HTTPError as error:
        raise LaunchError(f"peers cannot be found: {call.host}: {error.read().decode()[:300]}") from error
    except (OSError, ValueError) as error:
        raise LaunchError(f"peers cannot be found: {call.host}: {error}") from error
