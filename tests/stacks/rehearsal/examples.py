"""What the rehearsal's tests share: a region, tags, policies, a made-up registration, a run of a program."""

from collections.abc import Callable, Mapping
from typing import Any

from gpu_fleet_stacks.rehearsal.program import Rehearsed, read_config, run_program
from gpu_fleet_stacks.rehearsal.registrations import Registration, RegistrationOutcome
from tests.stacks.shipped import SHIPPED

REGION = "us-east-1"
STACKS = SHIPPED
AWS_STACKS = tuple(name for name in STACKS if read_config(name)["gpu-fleet:cloud"] == "aws")
TAGS = {"Name": "mine", "gpu-fleet:stack": "test"}
TRUST = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole",'
    ' "Principal": {"Service": "ec2.amazonaws.com"}}]}'
)
READ_ONLY = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}'
)
ROOT_URN = "urn:pulumi:test::gpu-fleet::pulumi:pulumi:Stack::gpu-fleet-test"


def token(kind: str) -> str:
    """A type of AWS in full: ``aws:ec2/vpc:Vpc`` for ``ec2/vpc``."""
    name = kind.partition("/")[2]
    return f"aws:{kind}:{name[0].upper()}{name[1:]}"


def as_map(pairs: list[Mapping[str, str]]) -> dict[str, str]:
    """Tags as most AWS APIs tell them, as a map."""
    return {pair["Key"]: pair["Value"] for pair in pairs}


def run(program: Callable[[], object], **options: Any) -> Rehearsed:
    """Run a small program in the stack ``test``."""
    return run_program("test", program=program, config={"gpu-fleet:region": REGION}, **options)


def registered(
    type_token: str,
    name: str,
    parent: str = ROOT_URN,
    outcome: RegistrationOutcome = RegistrationOutcome.CREATED,
    identifier: str = "id-1",
) -> Registration:
    """A registration as the monitor would have made it."""
    return Registration(
        type=type_token,
        name=name,
        urn=f"{parent}/{type_token}/{name}",
        parent=parent,
        inputs={},
        outputs={},
        id=identifier,
        outcome=outcome,
        protected=False,
        retained=False,
        deleted_with="",
        delete_timeout="",
        dependencies=(),
        ignored_changes=(),
        provider="",
        seconds=0.25,
    )
