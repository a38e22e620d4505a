"""What the keeper of image builds is given beside the policy: ``builds.json`` of its archive. Pure."""

import json
from collections.abc import Sequence

from stacks.settings import Cloud, Stack

KEEPER = "image.builds"  # a module for each cloud, with its handler
PLAN_FILE = "builds.json"


def plan_text(stack: Stack, pipelines: Sequence[str]) -> str:
    """The plan as JSON; ``image.builds.keeper.BuildsPlan`` says what each part means.

    Args:
        stack: one that builds its image.
        pipelines: their names, the one of each week first.
    """
    on_aws = stack.cloud is Cloud.AWS
    content = {
        "stack": stack.name,
        "pipelines": list(pipelines),
        "parameter": stack.image.built_parameter(stack.name) if on_aws else "",
        "scan": stack.image.scan,
        # Image Builder has a schedule of its own, an ECS pipeline has none
        "weekly": not on_aws,
    }
    return json.dumps(content, indent=1)
