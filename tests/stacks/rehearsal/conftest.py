"""An empty moto for each test, and a way to make one resource in it as the rehearsal does."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpu_fleet_stacks.rehearsal.aws_resources import CREATORS
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from tests.stacks.rehearsal.examples import REGION, TRUST


@pytest.fixture
def clients() -> Iterator[RegionClients]:
    """boto3's own view of an empty moto in us-east-1."""
    with moto_server(REGION):
        found = RegionClients(REGION)
        yield found
        found.pool.close()


@pytest.fixture
def create(clients) -> Callable[..., tuple[str, dict[str, Any]]]:
    """``create(type, **inputs)`` makes a resource named "it" and returns its id and outputs."""

    def made(type_token: str, **inputs: Any) -> tuple[str, dict[str, Any]]:
        return CREATORS[type_token](clients, "it", inputs)

    return made


@pytest.fixture
def vpc_id(create) -> str:
    return create("aws:ec2/vpc:Vpc", cidrBlock="10.0.0.0/16")[0]


@pytest.fixture
def subnet_id(create, vpc_id) -> str:
    made = create(
        "aws:ec2/subnet:Subnet", vpcId=vpc_id, cidrBlock="10.0.0.0/24", availabilityZone=f"{REGION}a"
    )
    return made[0]


@pytest.fixture
def group_id(create, vpc_id) -> str:
    return create("aws:ec2/securityGroup:SecurityGroup", vpcId=vpc_id, description="instances")[0]


@pytest.fixture
def role(create) -> dict[str, Any]:
    """A role that services may take."""
    return create("aws:iam/role:Role", assumeRolePolicy=TRUST)[1]
