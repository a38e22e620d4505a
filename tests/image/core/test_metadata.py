"""The metadata service, with tokens that expire, on both clouds."""

import re
import socket
import threading

import pytest

from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.reaper_errors import CloudError
from tests.image.metadata_server import metadata_server


@pytest.fixture(params=["aws", "alicloud"])
def cloud(request):
    return request.param


@pytest.fixture
def service(cloud, monkeypatch):
    with metadata_server(cloud) as server:
        variables = {
            "aws": "AWS_EC2_METADATA_SERVICE_ENDPOINT",
            "alicloud": "GPU_FLEET_ALICLOUD_METADATA_ENDPOINT",
        }
        for name, variable in variables.items():
            monkeypatch.setenv(variable, f"{server.base}/" if name == cloud else "http://x")
        yield server


def test_one_token_serves_many_questions_until_it_ran_out_and_is_renewed(service, cloud):
    metadata = Metadata(cloud)

    answers = [metadata.get("instance-id"), metadata.get("instance-id")]
    tokens = service.tokens
    service.tokens += 1

    assert ([*answers, metadata.get("instance-id")], tokens) == (["i-1"] * 3, 1)
    assert metadata.get("spot/instance-action") is None, "what is not there"


def test_a_failing_service_is_named_with_its_answer(service, cloud):
    service.answers["/latest/meta-data/instance-id"] = (503, "")

    with pytest.raises(CloudError, match="metadata instance-id: HTTP 503"):
        Metadata(cloud).get("instance-id")


def test_a_service_that_speaks_no_http_or_is_not_there_is_named(monkeypatch):
    def answer_nonsense():
        connection, _ = listening.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"nonsense\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
        thread = threading.Thread(target=answer_nonsense)
        thread.start()
        with pytest.raises(CloudError, match="metadata service"):
            Metadata("aws").get("instance-id")
        thread.join()
    with pytest.raises(CloudError, match=f"metadata service {re.escape(address)}: .*refused"):
        Metadata("aws").get("instance-id")
