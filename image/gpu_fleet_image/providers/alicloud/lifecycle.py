"""Auto Scaling's lifecycle hook: it delays an instance's termination until its agent is done."""

from collections.abc import Callable, Iterator
from typing import Any

from gpu_fleet_image.core.reaper_errors import AnswerError, CloudError
from gpu_fleet_image.providers.alicloud.session import Answer, Product

PAGE = 50  # DescribeScalingActivities, DescribeLifecycleActions: at most 50
IN_SERVICE, PROTECTED = "InService", "Protected"  # the second is in service too, and protected from scale-in
LEAVING = ("Removing", "Removing:Wait")  # LifecycleState of an instance that its group terminates


def lifecycle_state(ess: Product, instance_id: str) -> tuple[str, str]:
    """Return (id of the instance's group, its lifecycle state there); empty texts without a group.

    Raises CloudError if the cloud does not answer.
    """
    rows = _ask(ess.action("DescribeScalingInstances"), InstanceIds=[instance_id], PageSize=PAGE)
    members = rows["ScalingInstances"]
    return (members[0]["ScalingGroupId"], members[0]["LifecycleState"]) if members else ("", "")


class Hook:
    """Lifecycle hook of one instance's group."""

    def __init__(self, ess: Product, instance_id: str) -> None:
        self._ess = ess
        self._instance_id = instance_id

    def heartbeat(self) -> None:
        """Ask for more time: restart the hook's timeout. Raises CloudError."""
        for action in self._pending():
            _ask(
                self._ess.action("RecordLifecycleActionHeartbeat"),
                lifecycleHookId=action["LifecycleHookId"],
                lifecycleActionToken=action["LifecycleActionToken"],
            )

    def complete(self) -> None:
        """Let the termination continue.

        One token may stand for several instances that are removed at once. It is not completed then: the
        others may not have saved everything, and the hook's timeout releases all of them.

        Raises:
            CloudError: the cloud refused, or other instances share the token.
        """
        for action in self._pending():
            if action["InstanceIds"] != [self._instance_id]:
                others = len(action["InstanceIds"]) - 1
                raise CloudError(
                    f"lifecycle hook: {others} other instances share its token; it will time out"
                )
            _ask(
                self._ess.action("CompleteLifecycleAction"),
                LifecycleHookId=action["LifecycleHookId"],
                LifecycleActionToken=action["LifecycleActionToken"],
                LifecycleActionResult="CONTINUE",
            )

    def _pending(self) -> Iterator[dict[str, Any]]:
        group, _ = lifecycle_state(self._ess, self._instance_id)
        if not group:
            raise CloudError(f"{self._instance_id} is in no scaling group")
        running = _ask(
            self._ess.action("DescribeScalingActivities"),
            ScalingGroupId=group,
            StatusCode="InProgress",
            PageSize=PAGE,
        )
        for activity in running["ScalingActivities"]:
            answer = _ask(
                self._ess.action("DescribeLifecycleActions"),
                ScalingActivityId=activity["ScalingActivityId"],
                LifecycleActionStatus="Pending",
                MaxResults=PAGE,
            )
            yield from (
                action for action in answer["LifecycleActions"] if self._instance_id in action["InstanceIds"]
            )


def _ask(action: Callable[..., Answer], **parameters: Any) -> Answer:
    try:
        return action(**parameters)
    except AnswerError as error:
        raise CloudError(f"{action.__name__}: {error}", error.code) from error
