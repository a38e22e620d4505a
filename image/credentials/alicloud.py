"""The user role on Alibaba Cloud: the instance's role assumes it, for one account.

https://www.alibabacloud.com/help/en/ram/developer-reference/api-sts-2015-04-01-assumerole
"""

import os
from datetime import UTC, datetime

from image.credentials.sessions import SESSION_S, SessionKeys, own_id, session_name
from image.instance.alicloud_credentials import Credentials, temporary_keys
from image.instance.instance_file import InstanceFile
from image.instance.metadata import Metadata
from image.reaper.alicloud.session import ENDPOINT, Product
from image.reaper.calls import Calls


class AlicloudUserRole:
    """Asks STS.

    Args:
        arn: of the role.
        region: of the instance.
        metadata: of this instance, which has its own role's keys.
    """

    def __init__(self, arn: str, region: str, metadata: Metadata) -> None:
        self._arn = arn
        credentials = Credentials(metadata=metadata)
        self._sts = Product("Sts", region, credentials, endpoint=os.environ.get(ENDPOINT, ""), inside=True)
        self._metadata = metadata
        self._calls = Calls(lambda: datetime.now(UTC))

    def assume(self, account: str) -> SessionKeys:
        """Keys for an account; raises InstanceError."""
        answer = self._calls.look(
            self._sts.action("AssumeRole"),
            RoleArn=self._arn,
            RoleSessionName=session_name(account, own_id(self._metadata)),
            DurationSeconds=SESSION_S,
        )
        keys, ends = temporary_keys(answer.get("Credentials"), "AssumeRole: its answer")
        return SessionKeys(keys.key_id, keys.secret, keys.token, ends)


def connect(instance: InstanceFile, metadata: Metadata) -> AlicloudUserRole:
    """The role of an instance's users."""
    return AlicloudUserRole(instance.user_role, instance.region, metadata)
