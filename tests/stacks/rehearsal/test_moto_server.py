"""The moto server: every kind of request is answered, and nothing of it is left behind."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from gpu_fleet_stacks.rehearsal.errors import RehearsalError
from gpu_fleet_stacks.rehearsal.moto_server import moto_server

BUCKET = "rehearsal-bucket"


@pytest.fixture
def s3() -> Iterator[Any]:
    with moto_server("eu-central-1"):
        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
        yield client


def test_an_object_comes_back_as_it_was_put_whole_by_its_size_and_in_a_part(s3):
    content = os.urandom(300_000)

    s3.put_object(Bucket=BUCKET, Key="weights", Body=content)

    assert s3.get_object(Bucket=BUCKET, Key="weights")["Body"].read() == content
    assert s3.get_object(Bucket=BUCKET, Key="weights", Range="bytes=2-4")["Body"].read() == content[2:5]
    assert s3.head_object(Bucket=BUCKET, Key="weights")["ContentLength"] == len(content)


def test_an_object_in_parts_comes_back_whole(s3, tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(os.urandom(9 * 1024 * 1024))

    s3.upload_file(str(path), BUCKET, "checkpoint")

    assert s3.get_object(Bucket=BUCKET, Key="checkpoint")["Body"].read() == path.read_bytes()


def test_a_request_follows_a_refusal_and_an_answer_without_content(s3):
    s3.put_object(Bucket=BUCKET, Key="text", Body=b"0123456789")

    with pytest.raises(ClientError, match="NoSuchKey"):
        s3.get_object(Bucket=BUCKET, Key="missing")
    with pytest.raises(ClientError, match="404"):
        s3.head_object(Bucket=BUCKET, Key="missing")
    s3.delete_object(Bucket=BUCKET, Key="text")

    assert s3.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0


def test_requests_of_several_threads_do_not_mix(s3):
    def put(number: int) -> None:
        s3.put_object(Bucket=BUCKET, Key=str(number), Body=str(number).encode() * 1000)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    contents = {number: s3.get_object(Bucket=BUCKET, Key=str(number))["Body"].read() for number in range(8)}
    assert contents == {number: str(number).encode() * 1000 for number in range(8)}


def test_a_second_server_starts_empty_and_within_the_first_is_refused():
    with moto_server("us-east-1"):
        boto3.client("sns").create_topic(Name="first")
        with pytest.raises(RehearsalError, match="a moto server is open"), moto_server("us-east-1"):
            pass
        assert len(boto3.client("sns").list_topics()["Topics"]) == 1
    with moto_server("us-east-1"):
        assert boto3.client("sns").list_topics()["Topics"] == []


def test_clients_without_arguments_reach_it_and_environment_and_threads_are_given_back(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SNS", "http://192.0.2.1:1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    threads = threading.active_count()

    with moto_server("eu-central-1") as url:
        client = boto3.client("sns")
        assert (client.meta.endpoint_url, client.meta.region_name) == (url, "eu-central-1")
        client.list_topics()
        assert "AWS_PROFILE" not in os.environ

    assert os.environ["AWS_PROFILE"] == "mine"
    assert "AWS_ENDPOINT_URL" not in os.environ
    assert threading.active_count() == threads


def test_it_is_empty_after_a_service_that_makes_another_anew_while_moto_resets(monkeypatch):
    """Auto Scaling makes EC2: moto's own reset then forgets it, with the images of its first environment."""
    with moto_server("us-east-1"):
        boto3.client("ec2").describe_vpcs()
        boto3.client("autoscaling").describe_auto_scaling_groups()
    with moto_server("us-east-1"):
        pass
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "true")

    with moto_server("us-east-1"):
        images = boto3.client("ec2").describe_images(Owners=["amazon"])["Images"]

    assert images != []
