"""Groups of IAM Identity Center, and the function that reads them each minute (Lambda)."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_fleet_image.controllers.directory import directory as directories
from gpu_fleet_image.controllers.directory.directory import Directory, MemberProfile
from gpu_fleet_image.controllers.directory.refresh import log, refresh
from gpu_fleet_image.core import keys
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.cloud import LEDGER_URI, policy_file
from gpu_fleet_image.core.errors import CloudError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.providers.aws.session import client

PAGE = 100  # the maximum of ListGroupMemberships
GONE = "ResourceNotFoundException"
DISABLED = "DISABLED"
SESSION = "gpu-fleet-people"
RESERVE = timedelta(seconds=5)


class IdentityCenterGroups:
    """Groups of an identity store; see ``refresh.DirectoryGroups``.

    Args:
        identitystore: boto3's client.
        login: the attribute with the login name, as ``DescribeUser`` spells it.
    """

    def __init__(self, identitystore: Any, calls: Calls, store_id: str, login: str) -> None:
        self._client, self._calls, self._store, self._login = identitystore, calls, store_id, login

    def members(self, group: str) -> Mapping[str, MemberProfile | None]:
        """Return a group's members as the protocol: ids only. A deleted group is an error, not an empty one.

        If the list is empty, the group itself is looked up: an empty group locks all its members.
        """
        listed: dict[str, MemberProfile | None] = {}
        token: dict[str, str] = {}
        while True:
            page = self._calls.read(
                self._client.list_group_memberships,
                IdentityStoreId=self._store,
                GroupId=group,
                MaxResults=PAGE,
                **token,
            )
            listed |= {each["MemberId"]["UserId"]: None for each in page["GroupMemberships"]}
            if not page.get("NextToken"):
                break
            token = {"NextToken": page["NextToken"]}
        if not listed:
            self._calls.read(self._client.describe_group, IdentityStoreId=self._store, GroupId=group)
        return listed

    def profile(self, member: str) -> MemberProfile | None:
        """Return a member's profile as the protocol; None if the user is gone."""
        try:
            user = self._calls.read(self._client.describe_user, IdentityStoreId=self._store, UserId=member)
        except CloudError as error:
            if error.code == GONE:
                return None
            raise
        return MemberProfile(str(user.get(self._login) or ""), user.get("UserStatus") != DISABLED)


def handle(event: object, context: Any) -> Mapping[str, Any]:  # noqa: ARG001 - every event starts the same pass
    """Run one pass as a Lambda function.

    Raises:
        InstanceError: nothing was written; Lambda counts it as an error, which raises an alarm.
    """
    remaining = timedelta(milliseconds=context.get_remaining_time_in_millis())
    return run(datetime.now(UTC) + remaining)


def run(ends_at: datetime, as_of: datetime | None = None) -> Mapping[str, Any]:
    """Run one pass."""
    policy = policies.load(policy_file())
    clock = lambda: as_of or datetime.now(UTC)  # noqa: E731 - a clock
    calls = Calls(clock, ends_at - RESERVE)
    said = json.loads(policy_file().with_name(keys.DIRECTORY_FILE).read_text(encoding="utf-8"))
    directory = directories.parse(said)
    groups = IdentityCenterGroups(
        _identity_store(directory, policy.region, calls), calls, directory.identity_store, directory.login
    )
    store = Store(client("s3", policy.region), calls, os.environ[LEDGER_URI])
    return log(refresh(directory, groups, store, clock))


def _identity_store(directory: Directory, region: str, calls: Calls) -> Any:
    """Return the client, with the keys of a role if the directory is in another account."""
    where = directory.region or region
    if not directory.role:
        return client("identitystore", where)
    sts = client("sts", region)
    taken = calls.read(sts.assume_role, RoleArn=directory.role, RoleSessionName=SESSION)["Credentials"]
    keys = {
        "aws_access_key_id": taken["AccessKeyId"],
        "aws_secret_access_key": taken["SecretAccessKey"],
        "aws_session_token": taken["SessionToken"],
    }
    return client("identitystore", where, **keys)
