"""The lifecycle hook that holds a leaving machine until its agent lets it go."""

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from image.reaper.errors import CloudError


class Hook:
    """The hook of one machine's group.

    Args:
        autoscaling: boto3's client.
        name: of the hook.
        instance_id: the machine.
    """

    def __init__(self, autoscaling: Any, name: str, instance_id: str) -> None:
        self._client = autoscaling
        self._name = name
        self._instance_id = instance_id
        self._group = ""

    def heartbeat(self) -> None:
        """Ask for more time: the hook's timeout starts anew. Raises CloudError."""
        self._call("record_lifecycle_action_heartbeat")

    def complete(self) -> None:
        """Let the machine go. Raises CloudError."""
        self._call("complete_lifecycle_action", LifecycleActionResult="CONTINUE")

    def _call(self, method: str, **arguments: str) -> None:
        try:
            getattr(self._client, method)(
                LifecycleHookName=self._name,
                AutoScalingGroupName=self._group or self._find_group(),
                InstanceId=self._instance_id,
                **arguments,
            )
        except (BotoCoreError, ClientError) as error:
            raise CloudError(f"lifecycle hook {self._name}: {error}") from error

    def _find_group(self) -> str:
        answer = self._client.describe_auto_scaling_instances(InstanceIds=[self._instance_id])
        if not answer["AutoScalingInstances"]:
            raise CloudError(f"{self._instance_id} is in no scaling group")
        self._group = str(answer["AutoScalingInstances"][0]["AutoScalingGroupName"])
        return self._group
