"""Fixtures of several tests of the reaper."""

import boto3
import pytest
from moto.backends import get_backend
from moto.server import ThreadedMotoServer

from tests.image.fake_aws import fake_aws
from tests.image.live import live_aws
from tests.image.moto_fleet import MotoFleet


@pytest.fixture
def live(tmp_path):
    """Yield a stack in moto with real agents, the function's own handler, and one clock."""
    with live_aws(tmp_path) as made:
        yield made


@pytest.fixture
def fleet(monkeypatch, request):
    """Yield an empty stack in moto, whose time stands still by default, with an environment for it."""
    with fake_aws(frozen=getattr(request, "param", True)):
        made = MotoFleet()
        for name, value in made.environ().items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
def oss(monkeypatch):
    """Yield a client of moto's S3, in the place of OSS."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    get_backend("s3").reset()  # its state is the process's: an earlier test may have left the same bucket
    monkeypatch.setenv("GPU_FLEET_ALICLOUD_OSS_ENDPOINT", url)
    keys = {"aws_access_key_id": "made-up", "aws_secret_access_key": "made-up"}
    yield boto3.client("s3", "us-east-1", endpoint_url=url, **keys)
    server.stop()
