"""An empty moto for each test, and a way to make one resource in it as the rehearsal does."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_fleet_stacks.rehearsal.aws_resources import CREATORS
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from tests.stacks.rehearsal.examples import REGION, TRUST, token


@pytest.fixture
def clients() -> Iterator[RegionClients]:
    """boto3's own view of an empty moto in us-east-1."""
    with moto_server(REGION):
        found = RegionClients(REGION)
        yield found
        found.pool.close()


@pytest.fixture
def create(clients) -> Callable[..., tuple[str, dict[str, Any]]]:
    """``create(kind, **inputs)`` makes a resource named "it" and returns its id and outputs."""
    return lambda kind, **inputs: CREATORS[token(kind)](clients, "it", inputs)


@pytest.fixture
def seen(clients) -> Callable[..., dict[str, Any]]:
    """``seen(service, operation, **arguments)`` is the first entry that boto3 lists then."""

    def first(service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        answer = getattr(clients(service), operation)(**arguments)
        (listed,) = (value for value in answer.values() if isinstance(value, list) and value)
        return listed[0]

    return first


@pytest.fixture
def vpc_id(create) -> str:
    return create("ec2/vpc", cidrBlock="10.0.0.0/16")[0]


@pytest.fixture
def subnet_id(create, vpc_id) -> str:
    return create("ec2/subnet", vpcId=vpc_id, cidrBlock="10.0.0.0/24", availabilityZone=f"{REGION}a")[0]


@pytest.fixture
def group_id(create, vpc_id) -> str:
    return create("ec2/securityGroup", vpcId=vpc_id, description="instances")[0]


@pytest.fixture
def role(create) -> dict[str, Any]:
    """A role that services may take."""
    return create("iam/role", assumeRolePolicy=TRUST)[1]
