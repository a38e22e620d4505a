"""``run gpu_fleet_image.instance.trainer_wheels LISTS BASE FOLDER``.

The trainer's wheels from the bucket, not from PyPI.

``gpu-fleet image wheels STACK`` put them there. What arrives is held against the index here, and against the
list by pip once more.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from gpu_fleet_image.core import oss
from gpu_fleet_image.core.alicloud_credentials import Credentials
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.wheel_store import Fetch, fetch_all, index_key, listing

# What the user data says of the payload: cloud, region and bucket are those of the wheels too.
PAYLOAD_FILE = Path("/etc/gpu-fleet/payload.json")


def _fetcher(payload: Mapping[str, str]) -> Fetch:
    """Brings objects of the stack's bucket, with the instance's role."""
    region, bucket = payload["region"], payload["bucket"]
    if payload["cloud"] == "alicloud":
        inside = oss.ENDPOINT_INSIDE.format(region=region)
        client = oss.bucket_client(region, Credentials(metadata=Metadata("alicloud")), inside)
    else:
        client = boto3.client("s3", region_name=region)
    return lambda key, file: client.download_file(bucket, key, str(file))


def main() -> int:
    """Exit status 1, and one line, when the bucket does not have what the list names."""
    lists, base, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    payload = json.loads(PAYLOAD_FILE.read_text(encoding="utf-8"))
    where = f"bucket {payload['bucket']}"
    try:
        text = listing(lists, base)
        where += f", {index_key(text)}"
        count = fetch_all(text, folder, _fetcher(payload))
    except (InstanceError, BotoCoreError, ClientError, OSError, ValueError) as error:
        advice = "`gpu-fleet image wheels STACK` puts them there"
        sys.stderr.write(f"error: the trainer's wheels ({where}): {error}; {advice}\n")
        return 1
    sys.stdout.write(f"event=trainer-wheels count={count} folder={folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
