"""The instances in service of this instance's scaling group, on Alibaba Cloud."""

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from aliyunsdkcore.acs_exception.exceptions import (  # type: ignore[import-untyped] # brings no types
    ClientException,
    ServerException,
)
from aliyunsdkcore.auth.credentials import StsTokenCredential  # type: ignore[import-untyped] # the same
from aliyunsdkcore.client import AcsClient  # type: ignore[import-untyped] # the same
from aliyunsdkcore.request import CommonRequest  # type: ignore[import-untyped] # the same

from gpu_fleet.core.errors import LaunchError
from gpu_fleet.core.metadata import MetadataClient, ThisInstance
from gpu_fleet_jobs.launch.identity import PoolIdentity
from gpu_fleet_jobs.launch.members import in_order, members_in_service

# The endpoint inside the VPC, for networks without internet access; Auto Scaling lists one for every region.
ENDPOINT = "https://ess-vpc.{region}.aliyuncs.com"
VERSION = "2022-02-22"
PAGE_SIZE = 50
TIMEOUT_S = 20
# The SDK logs every refused call with the signed text; the exception holds everything else.
logging.getLogger("aliyunsdkcore").setLevel(logging.CRITICAL)


def alicloud_peers(identity: PoolIdentity, instance: ThisInstance) -> list[str]:
    """Return the private addresses in this instance's scaling group, its own included, lowest first.

    An instance outside a scaling group gets its own address alone. The only call is
    ess:DescribeScalingInstances, with the credentials of the instance's role. Raises LaunchError while
    members are still starting, if this instance is not in service, or if the call fails.
    """
    client = _client(identity.region, MetadataClient("alicloud").role_keys())
    own = list(_instances(identity, client, {"InstanceIds.1": instance.instance_id}))
    if not own:
        return [instance.address]
    group = {"ScalingGroupId": own[0]["ScalingGroupId"]}
    members = {member["InstanceId"]: member for member in _instances(identity, client, group)}
    ready = members_in_service(list(members.values()), instance)
    return in_order([members[instance_id]["PrivateIpAddress"] for instance_id in ready])


def _client(region: str, keys: Mapping[str, str]) -> Any:
    """Return a client of the official SDK, which signs the requests."""
    credential = StsTokenCredential(keys["AccessKeyId"], keys["AccessKeySecret"], keys["SecurityToken"])
    return AcsClient(region_id=region, credential=credential, connect_timeout=TIMEOUT_S, timeout=TIMEOUT_S)


def _instances(identity: PoolIdentity, client: Any, wanted: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the instances from all pages of DescribeScalingInstances.

    https://www.alibabacloud.com/help/en/auto-scaling/developer-reference/api-ess-2022-02-22-describescalinginstances
    """
    seen, total, page = 0, 1, 1
    while seen < total:
        paging = {"PageNumber": str(page), "PageSize": str(PAGE_SIZE), "RegionId": identity.region}
        answer = _call(identity.region, client, {**wanted, **paging})
        listed = answer.get("ScalingInstances", [])
        yield from listed
        seen, page = seen + len(listed), page + 1
        total = answer["TotalCount"] if listed else 0


def _call(region: str, client: Any, parameters: Mapping[str, str]) -> dict[str, Any]:
    protocol, _, host = ENDPOINT.format(region=region).partition("://")
    request = CommonRequest(product="Ess", version=VERSION, action_name="DescribeScalingInstances")
    request.set_domain(host)
    request.set_protocol_type(protocol)
    for name, value in parameters.items():
        request.add_query_param(name, value)
    try:
        answer = json.loads(client.do_action_with_exception(request))
    except (ServerException, ClientException, ValueError) as error:
        raise LaunchError(f"peers cannot be found: {host}: {error}") from error
    assert isinstance(answer, dict)
    return answer
