"""Interruption of a spot instance by AWS's Fault Injection Service."""

import json
from datetime import timedelta
from typing import Any

from gpu_fleet_image.core.model import TAG_STACK
from gpu_fleet_stacks.acceptance.aws_calls import RecordedAws
from gpu_fleet_stacks.acceptance.clock import RunClock
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

# docs.aws.amazon.com/fis/latest/userguide/fis-actions-reference.html#send-spot-instance-interruptions: two
# minutes at least; EC2 gives the instance two minutes' notice.
INTERRUPTION = "aws:ec2:send-spot-instance-interruptions"
NOTICE = "PT2M"
# docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot.html, "changes are not always immediately visible"
ROLE_PATIENCE = timedelta(minutes=2)
ROLE_EVERY_S = 10
EXPERIMENT_FAILED = frozenset({"failed", "stopped", "cancelled"})


class AwsInterruption:
    """Experiments that interrupt one spot instance; see ``account.SpotInterruption``."""

    def __init__(self, aws: RecordedAws, stack: Stack, clock: RunClock) -> None:
        self._aws, self._stack, self._clock = aws, stack, clock
        self._experiment: str | None = None
        self._role = naming.prefixed(stack.name, "fis")

    def interrupt(self, instance_id: str) -> str:
        """Have Fault Injection Service interrupt a spot instance, with a role for this instance alone."""
        partition = "aws-us-gov" if self._stack.region.startswith("us-gov-") else "aws"
        arn = f"arn:{partition}:ec2:{self._stack.region}:{self._stack.account_id}:instance/{instance_id}"
        role_arn = self._fis_role(arn)
        self._experiment = self._template(arn, role_arn)
        experiment = self._aws.ask("fis", "start_experiment", experimentTemplateId=self._experiment)[
            "experiment"
        ]
        self._started(experiment["id"])
        return f"FIS experiment {experiment['id']}: {INTERRUPTION} on {instance_id}"

    def _started(self, experiment_id: str) -> None:
        """Wait until the experiment runs or is done.

        Raises:
            CannotCheckError: the experiment failed or did not start in time; the message holds the reason.
        """
        until = self._clock.now() + ROLE_PATIENCE
        while self._clock.now() < until:
            state = self._aws.ask("fis", "get_experiment", id=experiment_id)["experiment"]["state"]
            if state["status"] in EXPERIMENT_FAILED:
                raise CannotCheckError(
                    f"FIS experiment {experiment_id}: {state.get('reason', state['status'])}"
                )
            if state["status"] in ("running", "completed"):
                return
            self._clock.sleep(ROLE_EVERY_S)
        raise CannotCheckError(f"FIS experiment {experiment_id} did not start within {ROLE_PATIENCE}")

    def _fis_role(self, instance_arn: str) -> str:
        """Make a role that may interrupt this one instance; return its ARN.

        Follows docs.aws.amazon.com/fis/latest/userguide/getting-started-iam-service-role.html.
        """
        trust = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "fis.amazonaws.com"},
                    "Action": "sts:AssumeRole",
                    "Condition": {"StringEquals": {"aws:SourceAccount": self._stack.account_id}},
                }
            ],
        }
        allowed = {
            "Version": "2012-10-17",
            "Statement": [
                {"Effect": "Allow", "Action": "ec2:DescribeInstances", "Resource": "*"},
                {"Effect": "Allow", "Action": "ec2:SendSpotInstanceInterruptions", "Resource": instance_arn},
            ],
        }
        boundary = self._stack.aws.permissions_boundary
        made = self._aws.ask(
            "iam",
            "create_role",
            RoleName=self._role,
            AssumeRolePolicyDocument=json.dumps(trust),
            Description=f"Interrupts one spot instance of gpu-fleet stack {self._stack.name}",
            Tags=[
                {"Key": key, "Value": value}
                for key, value in {TAG_STACK: self._stack.name, **self._stack.tags}.items()
            ],
            **({"PermissionsBoundary": boundary} if boundary else {}),
        )
        self._aws.ask(
            "iam",
            "put_role_policy",
            RoleName=self._role,
            PolicyName=self._role,
            PolicyDocument=json.dumps(allowed),
        )
        return str(made["Role"]["Arn"])

    def _template(self, instance_arn: str, role_arn: str) -> str:
        """Make the experiment's template; retry while FIS does not know the role yet."""
        until = self._clock.now() + ROLE_PATIENCE
        while True:
            try:
                made = self._aws.ask(
                    "fis",
                    "create_experiment_template",
                    clientToken=f"{self._role}-{self._clock.now():%Y%m%dT%H%M%S}",
                    description=f"gpu-fleet accept {self._stack.name}",
                    stopConditions=[{"source": "none"}],
                    targets={
                        "instance": {
                            "resourceType": "aws:ec2:spot-instance",
                            "resourceArns": [instance_arn],
                            "selectionMode": "ALL",
                        }
                    },
                    actions={
                        "interrupt": {
                            "actionId": INTERRUPTION,
                            "parameters": {"durationBeforeInterruption": NOTICE},
                            "targets": {"SpotInstances": "instance"},
                        }
                    },
                    roleArn=role_arn,
                    tags={TAG_STACK: self._stack.name},
                )
                return str(made["experimentTemplate"]["id"])
            except CannotCheckError as error:
                if error.code != "ValidationException" or self._clock.now() >= until:
                    raise
            self._clock.sleep(ROLE_EVERY_S)

    def forget_interruption(self) -> None:
        """Remove template and role, if they exist."""
        if self._experiment is not None:
            self._gone("fis", "delete_experiment_template", "ResourceNotFoundException", id=self._experiment)
            self._experiment = None
        self._gone("iam", "delete_role_policy", "NoSuchEntity", RoleName=self._role, PolicyName=self._role)
        self._gone("iam", "delete_role", "NoSuchEntity", RoleName=self._role)

    def _gone(self, service: str, operation: str, absent: str, **arguments: Any) -> None:
        try:
            self._aws.ask(service, operation, **arguments)
        except CannotCheckError as error:
            if error.code != absent:
                raise
