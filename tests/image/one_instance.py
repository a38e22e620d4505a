"""One instance of a fleet for its processes: files, environment, and an empty moto for the cloud."""

import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer

from tests.image.instance_toml import INSTANCE_TOML

REGION = "us-east-1"
NO_SERVICE = "http://127.0.0.1:9"


@contextmanager
def one_instance(folder: Path, metadata: str = NO_SERVICE) -> Iterator[dict[str, str]]:
    """Yield the environment of its processes.

    Args:
        folder: folder of its files.
        metadata: address of its metadata service; by default there is none.
    """
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    # its state is the process's: earlier tests may have left instances of the same stack
    urllib.request.urlopen(f"{url}/moto-api/reset", data=b"").close()
    (folder / "instance.toml").write_text(INSTANCE_TOML)
    yield os.environ | {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "made-up",
        "AWS_SECRET_ACCESS_KEY": "made-up",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata,
        "GPU_FLEET_INSTANCE_FILE": str(folder / "instance.toml"),
        "GPU_FLEET_RUN_DIR": str(folder / "run"),
    }
    server.stop()


def client(environment: dict[str, str], service: str):
    keys = {"aws_access_key_id": "made-up", "aws_secret_access_key": "made-up"}
    return boto3.client(service, REGION, endpoint_url=environment["AWS_ENDPOINT_URL"], **keys)
