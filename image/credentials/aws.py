"""The user role on AWS: the instance's role assumes it, for one account.

https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html
"""

from datetime import UTC, datetime

from image.credentials.sessions import SESSION_S, SessionKeys, account_in, own_id, session_name
from image.instance.instance_file import InstanceFile
from image.instance.metadata import Metadata
from image.reaper.aws import session
from image.reaper.calls import Calls

ACCOUNT_TAG = "SSMSessionRunAs"  # by which policies know an account everywhere (stacks/aws/submit.py)


class AwsUserRole:
    """Asks STS.

    Args:
        arn: of the role.
        region: of the instance, whose STS is asked.
        metadata: of this instance.
    """

    def __init__(self, arn: str, region: str, metadata: Metadata) -> None:
        self._arn = arn
        self._sts = session.client("sts", region)
        self._metadata = metadata
        self._calls = Calls(lambda: datetime.now(UTC))

    def assume(self, account: str) -> SessionKeys:
        """Keys for an account; raises InstanceError."""
        name = session_name(account, own_id(self._metadata))
        answer = self._calls.look(
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
    """The role of an instance's users."""
    return AwsUserRole(instance.user_role, instance.region, metadata)
