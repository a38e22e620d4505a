"""``python -m gpu_fleet_image.instance.slurm.node``.

Joins the queue as a node. The unit gpu-queue-node calls it.

``prepare`` writes munge's key and the list of the GPUs; ``start`` becomes slurmd.
"""

import json
import logging
import os
import sys
from pathlib import Path

from gpu_fleet_image.core import instance_file, paths, queue_file
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.files import read_text, replace_text
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.queue_errors import NotReadyError
from gpu_fleet_image.slurm import cloud, configuration, munge

LOG = logging.getLogger(__name__)


def counted_gpus(report: Path) -> int:
    """Return the number of GPUs that the boot check counted.

    Raises:
        NotReadyError: the boot check has not passed.
    """
    try:
        content = json.loads(read_text(report))
        if content["ready"] is not True:
            raise NotReadyError(
                f"{report}: the boot check has not passed, so the instance does not join the queue"
            )
        return int(content["checks"]["gpu_count"]["count"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotReadyError(f"{report}: no report of a boot check: {error!r}") from error


def prepare() -> None:
    """Write the files that slurmd needs; raises InstanceError."""
    instance = instance_file.load(paths.instance_file())
    queue = queue_file.load(queue_file.path())
    gpus = counted_gpus(paths.ready_file())
    key = cloud.of(instance).key(queue.secret, may_make=False)
    munge.lay(key)
    replace_text(Path(configuration.NODE_GPUS), configuration.node_gpus(gpus))
    LOG.info("event=queue-node-prepared gpus=%d controller=%s", gpus, queue.address)


def command() -> list[str]:
    """Return slurmd's command on this instance; raises InstanceError."""
    instance = instance_file.load(paths.instance_file())
    queue = queue_file.load(queue_file.path())
    own = Metadata(instance.cloud).get("instance-id")
    if own is None:
        raise NotReadyError("the metadata service does not know this instance's id")
    return configuration.node_command(own, instance.pool, counted_gpus(paths.ready_file()), queue.address)


def main(words: list[str]) -> int:
    """Run a step of the unit; return its exit status."""
    logging.basicConfig(level=logging.INFO, format="level=%(levelname)s %(message)s")
    try:
        if words == ["prepare"]:
            prepare()
            return 0
        if words == ["start"]:
            started = command()
            os.execvp(started[0], started)  # noqa: S606 - no shell is wanted
    except (InstanceError, OSError) as error:
        LOG.error("event=queue-node-not-started reason=%r", str(error))
        return 1
    LOG.error("event=usage words=%r allowed='prepare, start'", words)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
