"""The metadata service as cloud-init walks through it: listings, versions, user data, a role's keys."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from tests.image.stand_ins.signatures import Keys

ADDRESS = "169.254.169.254"
LATEST = "/latest/"


class Tree(dict):
    """Path below ``/latest/`` -> body, with what the real service makes of it.

    Every version answers like the latest, and a folder answers with the names in it, one a line.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
    """

    def get(self, path: str, default: str | None = None) -> str | None:
        """The body of a path, or the listing of a folder."""
        _, _version, rest = (*path.split("/", 2), "", "")[:3]
        exact = dict.get(self, LATEST + rest)
        if exact is not None:
            return exact
        folder = LATEST + rest.rstrip("/") + "/" if rest.strip("/") else LATEST
        below = [name.removeprefix(folder) for name in self if name.startswith(folder)]
        names = {name.split("/")[0] + ("/" if "/" in name else "") for name in below}
        return "\n".join(sorted(names)) if names else default


def tree(instance: Mapping[str, str], user_data: str, role: str, keys: Keys) -> Tree:
    """What one instance is told.

    Args:
        instance: path below ``meta-data/`` -> value.
        user_data: as it was registered, decoded.
        role: the role's name.
        keys: the role's for now.
    """
    credentials = {"Type": "AWS-HMAC", **role_keys(keys, "SecretAccessKey", "Token")}
    document = {
        "accountId": "123456789012",
        "architecture": "x86_64",
        "availabilityZone": instance["placement/availability-zone"],
        "imageId": instance["ami-id"],
        "instanceId": instance["instance-id"],
        "instanceType": instance["instance-type"],
        "region": instance["placement/region"],
        "version": "2017-09-30",
    }
    return Tree(
        {f"{LATEST}meta-data/{path}": value for path, value in instance.items()}
        | {
            f"{LATEST}meta-data/iam/security-credentials/{role}": json.dumps(credentials),
            f"{LATEST}dynamic/instance-identity/document": json.dumps(document),
            f"{LATEST}user-data": user_data,
        }
    )


def role_keys(keys: Keys, secret_name: str, token_name: str) -> dict[str, str]:
    """What a metadata service says of a role's keys."""
    now = datetime.now(UTC)
    return {
        "Code": "Success",
        "AccessKeyId": keys.id,
        secret_name: keys.secret,
        token_name: keys.token,
        "LastUpdated": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "Expiration": f"{now + timedelta(hours=6):%Y-%m-%dT%H:%M:%SZ}",
    }
