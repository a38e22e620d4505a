"""The user role on Alibaba Cloud: the instance's role assumes it, for one account.

https://www.alibabacloud.com/help/en/ram/developer-reference/api-sts-2015-04-01-assumerole
"""

import json
import os
from datetime import UTC, datetime

from gpu_fleet_image.core.alicloud_credentials import Credentials, temporary_keys
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.runs import FOLDER, job_prefix, words_prefix
from gpu_fleet_image.instance.credentials.sessions import (
    SESSION_S,
    SessionKeys,
    account_in,
    own_id,
    session_name,
)
from gpu_fleet_image.providers.alicloud.session import ENDPOINT, Product


class AlicloudUserRole:
    """Client of STS for the user role.

    Args:
        arn: of the role.
        records: bucket of the stack's records.
        metadata: of this instance, which has its own role's keys.
    """

    def __init__(self, arn: str, region: str, records: str, metadata: Metadata) -> None:
        self._arn, self._records = arn, records
        credentials = Credentials(metadata=metadata)
        self._sts = Product("Sts", region, credentials, endpoint=os.environ.get(ENDPOINT, ""), inside=True)
        self._metadata = metadata
        self._calls = Calls(lambda: datetime.now(UTC))

    def assume(self, account: str) -> SessionKeys:
        """Return keys for an account; raises InstanceError."""
        name = session_name(account, own_id(self._metadata))
        answer = self._calls.read(
            self._sts.action("AssumeRole"),
            RoleArn=self._arn,
            RoleSessionName=name,
            DurationSeconds=SESSION_S,
            Policy=session_policy(account_in(name), self._records),
        )
        keys, ends = temporary_keys(answer.get("Credentials"), "AssumeRole: its answer")
        return SessionKeys(keys.key_id, keys.secret, keys.token, ends)


def connect(instance: InstanceFile, metadata: Metadata) -> AlicloudUserRole:
    """Return the role of an instance's users."""
    records = instance.records_uri.partition("://")[2].partition("/")[0]
    return AlicloudUserRole(instance.user_role, instance.region, records, metadata)


def session_policy(account: str, records: str) -> str:
    """Return a session's policy: of submitted runs only the account's own, and everything else. Pure.

    RAM has no variable for the caller, so that the role itself allows everybody's runs. A session has only
    the rights that both role and session policy grant; its policy has 2,048 characters at most (the reference
    of AssumeRole).
    """
    bucket = f"acs:oss:*:*:{records}"
    own = [job_prefix(account), words_prefix(account)]
    places = [bucket, f"{bucket}/{FOLDER}/*"]
    statements = [
        {"Effect": "Allow", "Action": "*", "NotResource": places},
        {"Effect": "Allow", "Action": "oss:*", "Resource": [f"{bucket}/{prefix}*" for prefix in own]},
        {
            "Effect": "Allow",
            "Action": "oss:ListObjects",
            "Resource": bucket,
            "Condition": {"StringLike": {"oss:Prefix": [f"{prefix}*" for prefix in own]}},
        },
    ]
    return json.dumps({"Version": "1", "Statement": statements}, separators=(",", ":"))
