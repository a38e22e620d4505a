"""Calls of Alibaba Cloud in an acceptance run: documented ones alone, each kept as evidence.

Products answer by their RPC interface, OSS by its S3 interface.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpu_fleet_image.core.model import TAG_STACK
from gpu_fleet_image.providers.alicloud.session import PRODUCTS
from gpu_fleet_stacks.acceptance.account import NO_ANSWER, Call
from gpu_fleet_stacks.acceptance.clock import RunClock
from gpu_fleet_stacks.clients import oss
from gpu_fleet_stacks.clients.alicloud import Alicloud, listed
from gpu_fleet_stacks.clients.errors import CannotCheckError, request_id

OSS_PAGE = "https://www.alibabacloud.com/help/en/oss/developer-reference/compatibility-with-amazon-s3"


def _doc(product: str, action: str) -> str:
    name = product.capitalize()
    return f"https://api.alibabacloud.com/document/{name}/{PRODUCTS[name][0]}/{action}"


ACTIONS = {
    "cms": ("DescribeMetricLast", "DescribeMetricList", "DescribeMetricRuleList"),
    "ecs": (
        "DeleteInstances",
        "DescribeCloudAssistantStatus",
        "DescribeDisks",
        "DescribeInstances",
        "DescribeInvocationResults",
        "RunCommand",
        "TagResources",
        "UntagResources",
    ),
    "ess": (
        "DescribeScalingActivities",
        "DescribeScalingConfigurations",
        "DescribeScalingGroups",
        "ScaleWithAdjustment",
    ),
    "kms": ("DescribeKey", "ScheduleKeyDeletion"),
    "sts": ("GetCallerIdentity",),
    "tag": ("ListTagResources",),
    "vpc": ("DescribeEipAddresses", "DescribeNatGateways"),
}
CALLS = {f"{product}.{name}": _doc(product, name) for product, names in ACTIONS.items() for name in names} | {
    f"oss.{name}": OSS_PAGE
    for name in (
        *("abort_multipart_upload", "delete_object", "get_object", "list_multipart_uploads"),
        *("list_object_versions", "list_objects_v2"),
    )
}
PAGE = 100  # DescribeInstances, DescribeDisks, DescribeEipAddresses


class RecordedAlicloud:
    """Client of Alibaba Cloud that makes the calls of ``CALLS`` alone.

    Args:
        connect: makes boto3's client for OSS.
    """

    def __init__(self, cloud: Alicloud, region: str, clock: RunClock, connect: Callable[[str], Any]) -> None:
        self.made: list[Call] = []
        self._cloud, self._region, self._clock, self._connect = cloud, region, clock, connect
        self._s3: Any = None

    def ask(self, name: str, **parameters: str) -> dict[str, Any]:
        """Make one call of ``CALLS`` and keep it as evidence.

        Raises:
            CannotCheckError: the cloud refused the call or did not answer.
            KeyError: the call is not in ``CALLS``.
        """
        doc, at = CALLS[name], self._clock.now()
        product, action = name.split(".")
        try:
            answer = self._cloud.ask(product, action, RegionId=self._region, **parameters)
        except CannotCheckError as error:
            self.made.append(Call(at, name, error.request_id, error.code or NO_ANSWER, doc))
            raise
        self.made.append(Call(at, name, request_id(answer), "", doc))
        return answer

    def oss(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make one call of OSS; errors as in ``ask``."""
        name = f"oss.{operation}"
        doc, at = CALLS[name], self._clock.now()
        self._s3 = self._s3 or self._connect(self._region)
        try:
            answer = oss.ask(self._s3, operation, **arguments)
        except CannotCheckError as error:
            self.made.append(Call(at, name, error.request_id, error.code or NO_ANSWER, doc))
            raise
        self.made.append(Call(at, name, request_id(answer), "", doc))
        return answer

    def rows(
        self, name: str, path: tuple[str, ...], chosen: Mapping[str, str], **parameters: str
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of all pages of a call with ``NextToken``."""
        token: dict[str, str] = {}
        while True:
            page = self.ask(name, **chosen, **parameters, **token)
            yield from listed(page, *path)
            if not page.get("NextToken"):
                return
            token = {"NextToken": page["NextToken"]}


def own(stack: str) -> dict[str, str]:
    """Return the parameters that choose everything with the stack's tag."""
    return {"Tag.1.Key": TAG_STACK, "Tag.1.Value": stack}
