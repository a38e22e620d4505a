"""RAM user groups, and the function that reads them each minute (Function Compute)."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_fleet_image.controllers.directory import directory as directories
from gpu_fleet_image.controllers.directory.directory import MemberProfile
from gpu_fleet_image.controllers.directory.refresh import log, refresh
from gpu_fleet_image.core import keys
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.cloud import LEDGER_URI, policy_file
from gpu_fleet_image.providers.alicloud.connect import bucket_client, credentials
from gpu_fleet_image.providers.alicloud.oss import OssStore
from gpu_fleet_image.providers.alicloud.session import ENDPOINT, Product

PAGE = 100  # the maximum of ListUsersForGroup
RESERVE = timedelta(seconds=5)


class RamGroups:
    """RAM user groups; see ``refresh.DirectoryGroups``.

    IMS lists ids and names at once; RAM's own API lists only names.
    """

    def __init__(self, ims: Product, calls: Calls) -> None:
        self._ims, self._calls = ims, calls

    def members(self, group: str) -> Mapping[str, MemberProfile | None]:
        """Return a group's members as the protocol.

        The login name is the part before the @ of the account's domain.

        help.aliyun.com/en/ram/developer-reference/api-ims-2019-08-15-listusersforgroup
        """
        listed: dict[str, MemberProfile | None] = {}
        marker: dict[str, str] = {}
        while True:
            page = self._calls.read(
                self._ims.action("ListUsersForGroup"), GroupName=group, MaxItems=PAGE, **marker
            )
            users = page.get("Users", {}).get("User", [])
            listed |= {
                str(user["UserId"]): MemberProfile(str(user["UserPrincipalName"]).partition("@")[0])
                for user in users
            }
            if not page.get("IsTruncated"):
                return listed
            marker = {"Marker": str(page["Marker"])}

    def profile(self, member: str) -> MemberProfile | None:  # noqa: ARG002 - see below
        """Return None: the list already had everybody's name."""
        return None


def handle(event: bytes, context: Any) -> str:  # noqa: ARG001 - every event starts the same pass
    """Run one pass as a function; returns and raises as ``run``."""
    return json.dumps(run(datetime.now(UTC) + timedelta(seconds=context.function.timeout)))


def run(ends_at: datetime, as_of: datetime | None = None) -> Mapping[str, Any]:
    """Run one pass.

    Raises:
        InstanceError: nothing was written; the function counts it as an error.
    """
    policy = policies.load(policy_file())
    clock = lambda: as_of or datetime.now(UTC)  # noqa: E731 - a clock
    calls = Calls(clock, ends_at - RESERVE)
    said = json.loads(policy_file().with_name(keys.DIRECTORY_FILE).read_text(encoding="utf-8"))
    ims = Product("Ims", policy.region, credentials(os.environ), endpoint=os.environ.get(ENDPOINT, ""))
    store = OssStore(bucket_client(policy.region), calls, os.environ[LEDGER_URI])
    return log(refresh(directories.parse(said), RamGroups(ims, calls), store, clock))
