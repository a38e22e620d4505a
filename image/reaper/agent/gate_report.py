"""What the gate said of this boot, as far as the agent reports it to the sweep."""

import json
from pathlib import Path

from image.instance.files import read_text
from image.reaper.agent.judge import Judgement


def passed(file: Path) -> bool | None:
    """Whether the gate let the instance be used; None while it has not said, or where nobody can tell.

    Args:
        file: the gate's report; on tmpfs, so never of an earlier boot.
    """
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError):
        return None
    ready = content.get("ready") if isinstance(content, dict) else None
    return ready if isinstance(ready, bool) else None


def is_unfit(judgement: Judgement, gate_passed: bool | None) -> bool:
    """Whether the instance may be replaced as far as this minute tells: the gate failed it and nothing works.

    The GPUs may not answer, which is what such a gate is for. Any other sensor that fails hides too much.
    """
    blind = [reason for reason in judgement.unknown if not reason.startswith("gpu")]
    return gate_passed is False and not judgement.reasons and not judgement.hung and not blind
