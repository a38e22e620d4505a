"""Documented fields of Alibaba Cloud's actions, by which the tests' answers are checked.

    python -m tests.image.alicloud_api FOLDER

rewrites ``alicloud_api.toml`` from the makers' own SDKs, unpacked below FOLDER (``pip install --no-deps
--target FOLDER`` and the packages of ``PACKAGES``): the names that a request takes and an answer has, at any
depth, with the action's page and the day. Fakes answer nothing else.
"""

import argparse
import datetime
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

TABLE = Path(__file__).with_name("alicloud_api.toml")
# Package -> the actions that stand-ins answer.
PACKAGES = {
    "alibabacloud_cms20190101": (
        "DescribeMetricLast DescribeMetricList DescribeMetricRuleList PutCustomMetric"
    ),
    "alibabacloud_dm20151123": "QueryMailAddressByParam SingleSendMail",
    "alibabacloud_ecs20140526": (
        "DeleteDisk DeleteInstances DescribeAccountAttributes DescribeAvailableResource "
        "DescribeCloudAssistantStatus DescribeCommands DescribeDisks DescribeElasticityAssurances "
        "DescribeImagePipelineExecutions DescribeImagePipelines DescribeImages DescribePrice "
        "DescribeInstances DescribeInvocationResults DescribeSnapshots DescribeSpotAdvice "
        "DescribeSpotPriceHistory InvokeCommand ModifyInstanceMetadataOptions RunCommand "
        "StartImagePipelineExecution StopInstances TagResources UntagResources"
    ),
    "alibabacloud_ess20220222": (
        "AttachInstances CompleteLifecycleAction DescribeAlarms DescribeLifecycleActions "
        "DescribeScalingActivities DescribeScalingConfigurations DescribeScalingGroups "
        "DescribeScalingInstances DetachInstances ModifyScalingGroup RecordLifecycleActionHeartbeat "
        "ResumeProcesses ScaleWithAdjustment SetInstancesProtection SuspendProcesses"
    ),
    "alibabacloud_ims20190815": "ListUsersForGroup",
    "alibabacloud_kms20160120": (
        "DescribeAccountKmsStatus DescribeKey DescribeSecret GetKmsInstance GetSecretValue "
        "PutSecretValue ScheduleKeyDeletion SetDeletionProtection"
    ),
    "alibabacloud_nas20170626": (
        "DescribeAccessRules DescribeFileSystems DescribeMountTargets DescribeZones"
    ),
    "alibabacloud_privatelink20200415": "CheckProductOpen",
    "alibabacloud_quotas20200510": "ListProductQuotas",
    "alibabacloud_ram20150501": "GetRole",
    "alibabacloud_sts20150401": "AssumeRole GetCallerIdentity",
    "alibabacloud_tag20180828": "ListTagResources",
    "alibabacloud_vpc20160428": (
        "DescribeEipAddresses DescribeNatGateways DescribeRouteEntryList DescribeSnatTableEntries "
        "DescribeVSwitches DescribeVpcs GetFlowLogServiceStatus UnTagResources"
    ),
}
# No Python package has it; from com.aliyun.sls20191023, GetSlsServiceResponseBody.
BY_HAND = {
    "GetSlsService": {
        "page": "https://www.alibabacloud.com/help/en/log-service/latest/getslsservice",
        "source": "com.aliyun.sls20191023",
        "request": [],
        "answer": ["Code", "Enabled", "Message", "RequestId", "Status", "Success"],
    }
}
# Of every RPC request: www.alibabacloud.com/help/en/sdk/product-overview/rpc-mechanism
COMMON = frozenset(
    {
        *("Action", "Version", "Format", "AccessKeyId", "SecurityToken", "Timestamp", "RegionId"),
        *("Signature", "SignatureMethod", "SignatureVersion", "SignatureNonce", "SignatureType"),
    }
)

UNDOCUMENTED: list[str] = []


@cache
def documented() -> dict[str, Any]:
    """Return action -> its row."""
    return tomllib.loads(TABLE.read_text())


def misfit(action: str, request: Iterable[str], answer: Any) -> str:
    """Return the undocumented fields of a request or an answer; empty if both fit.

    Args:
        action: such as ``DescribeInstances``.
        request: names of parameters, ``Tag.1.Key`` and the like.
        answer: the whole answer, without its RequestId.
    """
    row = documented().get(action)
    if row is None:
        return f"{action} is in no row of {TABLE.name}"
    asked = {name.partition(".")[0] for name in request} - COMMON - set(row["request"])
    said = set(_names(answer)) - set(row["answer"])
    return f"{action} takes no {sorted(asked)}, answers no {sorted(said)}" if asked or said else ""


def refused(action: str, request: Iterable[str], answer: Any) -> str:
    """Return ``misfit``, and record it in ``UNDOCUMENTED``, which is checked at the end of every test.

    A refusal alone would be overlooked if the caller tolerates refusals, as agents and sweeps do.
    """
    odd = misfit(action, request, answer)
    if odd:
        UNDOCUMENTED.append(odd)
    return odd


def _names(answer: Any) -> Iterator[str]:
    if isinstance(answer, dict):
        yield from answer
        answer = list(answer.values())
    if isinstance(answer, list):
        for part in answer:
            yield from _names(part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    today = datetime.datetime.now(datetime.UTC).date()
    table: dict[str, Any] = {action: row | {"read": today} for action, row in BY_HAND.items()}
    for package, actions in PACKAGES.items():
        names = _fields(folder / package)
        product, version = re.fullmatch(r"alibabacloud_([a-z]+)(\d+)", package).groups()
        dated = f"{version[:4]}-{version[4:6]}-{version[6:]}"
        (release,) = folder.glob(f"{package}-*.dist-info")
        for action in actions.split():
            table[action] = {
                "page": f"https://api.alibabacloud.com/document/{product.capitalize()}/{dated}/{action}",
                "source": release.name.removesuffix(".dist-info"),
                "read": today,
                "request": _of(names, f"{action}Request"),
                "answer": _of(names, f"{action}ResponseBody"),
            }
    TABLE.write_text(tomli_w.dumps(dict(sorted(table.items()))))


def _fields(package: Path) -> dict[str, set[str]]:
    """Return class -> the names that it sends or reads."""
    found: dict[str, set[str]] = {}
    for file in (*package.glob("models.py"), *package.glob("models/_*.py")):
        for part in re.split(r"^class ", file.read_text(), flags=re.MULTILINE)[1:]:
            found[part.partition("(")[0]] = set(re.findall(r"result\['([^']+)'\]", part))
    return found


def _of(names: dict[str, set[str]], prefix: str) -> list[str]:
    assert prefix in names or prefix.endswith("Request"), prefix
    return sorted({name for kind, fields in names.items() if kind.startswith(prefix) for name in fields})


if __name__ == "__main__":
    main()
