"""Plan of the image builds' controller: ``builds.json``, beside the policy in its archive. Pure."""

import json
from collections.abc import Sequence

from gpu_fleet_stacks.settings import Cloud, Stack


def plan_text(stack: Stack, pipelines: Sequence[str]) -> str:
    """Return the plan as JSON; ``BuildsPlan`` of the image's build controller describes each part.

    Args:
        stack: a stack that builds its image.
        pipelines: their names; the first is the weekly one.
    """
    on_aws = stack.cloud is Cloud.AWS
    content = {
        "stack": stack.name,
        "pipelines": list(pipelines),
        "parameter": stack.image.built_parameter(stack.name) if on_aws else "",
        "scan": stack.image.scan,
        # Image Builder has its own schedule, an ECS pipeline has none
        "weekly": not on_aws,
    }
    return json.dumps(content, indent=1)
