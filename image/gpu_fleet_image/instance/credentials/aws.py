"""The user role on AWS: the instance's role assumes it, for one account.

https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html
"""

from datetime import UTC, datetime

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.instance.credentials.sessions import (
    SESSION_S,
    SessionKeys,
    account_in,
    own_id,
    session_name,
)
from gpu_fleet_image.providers.aws import session

ACCOUNT_TAG = "SSMSessionRunAs"  # name of accounts in all policies (stacks/gpu_fleet_stacks/aws/submit.py)


class AwsUserRole:
    """Client of STS for the user role."""

    def __init__(self, arn: str, region: str, metadata: Metadata) -> None:
        self._arn = arn
        self._sts = session.client("sts", region)
        self._metadata = metadata
        self._calls = Calls(lambda: datetime.now(UTC))

    def assume(self, account: str) -> SessionKeys:
        """Return keys for an account; raises InstanceError."""
        name = session_name(account, own_id(self._metadata))
        answer = self._calls.read(
            self._sts.assume_role,
            RoleArn=self._arn,
            RoleSessionName=name,
            DurationSeconds=SESSION_S,
            Tags=[{"Key": ACCOUNT_TAG, "Value": account_in(name)}],
        )
        keys = answer["Credentials"]
        return SessionKeys(
            keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], keys["Expiration"]
        )


def connect(instance: InstanceFile, metadata: Metadata) -> AwsUserRole:
    """Return the role of an instance's users."""
    return AwsUserRole(instance.user_role, instance.region, metadata)
