"""``run gpu_fleet_image.instance.trainer_wheels LISTS BASE FOLDER``.

Downloads the trainer's wheels from the bucket instead of PyPI.

``gpu-fleet image wheels STACK`` uploads them. Each download is compared with the index here, and by pip with
the list.
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

# The payload's entry of the user data: the wheels have the same cloud, region and bucket.
PAYLOAD_FILE = Path("/etc/gpu-fleet/payload.json")


def _fetcher(payload: Mapping[str, str]) -> Fetch:
    """Return a function that downloads objects of the stack's bucket, with the instance's role."""
    region, bucket = payload["region"], payload["bucket"]
    if payload["cloud"] == "alicloud":
        inside = oss.ENDPOINT_INSIDE.format(region=region)
        client = oss.bucket_client(region, Credentials(metadata=Metadata("alicloud")), inside)
    else:
        client = boto3.client("s3", region_name=region)
    return lambda key, file: client.download_file(bucket, key, str(file))


def main() -> int:
    """Download the wheels; return 1, after one line, if the bucket lacks some of the list."""
    lists, base, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    payload = json.loads(PAYLOAD_FILE.read_text(encoding="utf-8"))
    where = f"bucket {payload['bucket']}"
    try:
        text = listing(lists, base)
        where += f", {index_key(text)}"
        count = fetch_all(text, folder, _fetcher(payload))
    except (InstanceError, BotoCoreError, ClientError, OSError, ValueError) as error:
        advice = "`gpu-fleet image wheels STACK` uploads them"
        sys.stderr.write(f"error: the trainer's wheels ({where}): {error}; {advice}\n")
        return 1
    sys.stdout.write(f"event=trainer-wheels count={count} folder={folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
