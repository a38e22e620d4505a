"""boto3 clients as a sweep wants them: few connections, patient with throttling, never waiting for long."""

from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

ATTEMPTS = 8
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30


@dataclass(frozen=True)
class Clients:
    """The clients of one region.

    Attributes:
        ec2, autoscaling, cloudwatch, sns, s3: boto3 clients.
    """

    ec2: Any
    autoscaling: Any
    cloudwatch: Any
    sns: Any
    s3: Any


def clients(region: str) -> Clients:
    """Clients for a region; ``AWS_ENDPOINT_URL`` leads them elsewhere.

    Args:
        region: say ``us-east-1``.
    """
    config = Config(
        region_name=region,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
    )
    session = boto3.session.Session()
    made = {
        name: session.client(name, config=config)
        for name in ("ec2", "autoscaling", "cloudwatch", "sns", "s3")
    }
    return Clients(**made)
