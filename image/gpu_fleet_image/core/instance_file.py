"""``instance.toml``: the stack's declaration of an instance."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from gpu_fleet_image.core.document import MAY_LACK, Record, checked, one_of
from gpu_fleet_image.core.errors import InstanceFileError

CLOUDS = ("aws", "alicloud")


@dataclass(frozen=True)
class Expected(Record):
    """Properties of an instance type, from the catalog."""

    gpus: int = 0
    gpu_memory_gib: float = field(default=0, metadata=MAY_LACK)
    efa_interfaces: int = field(default=0, metadata=MAY_LACK)
    erdma_interfaces: int = field(default=0, metadata=MAY_LACK)


@dataclass(frozen=True)
class InstanceFile(Record):
    """Properties of this instance that agent, gate and commands need.

    Attributes:
        cloud: ``aws`` or ``alicloud``.
        data_uri: bucket that receives data before the instance is terminated, ``s3://BUCKET``.
        records_uri: where the agent replies to the sweep, ``s3://BUCKET/reaper``.
        lifecycle_hook: of the pool's scaling group; empty without one.
        home_file_system: DNS name of the shared home, or empty.
        monitor_group: CloudMonitor's application group for metrics of the pool; empty for none.
        instance_log: destination of its logs: a log group, or ``PROJECT/STORE``; empty for none.
        user_role: the role behind users' credentials, an ARN; empty if no pool declares one.
        expected: instance type -> its properties.
    """

    cloud: Annotated[str, one_of(*CLOUDS)]
    region: str
    stack: str
    pool: str
    data_uri: str
    records_uri: str
    metric_namespace: str
    lifecycle_hook: str
    home_file_system: str
    expected: Mapping[str, Expected] = field(default_factory=dict, metadata=MAY_LACK)
    # the file of the queue's controller, or of a stack without such a resource, lacks them
    monitor_group: str = field(default="", metadata=MAY_LACK)
    instance_log: str = field(default="", metadata=MAY_LACK)
    user_role: str = field(default="", metadata=MAY_LACK)
    schema_version: Annotated[int, one_of(1)] = 1

    def expected_of(self, instance_type: str | None) -> Expected:
        """Return what an instance of a type must have; of an unknown type, the least of the pool's types."""
        if instance_type in self.expected or not self.expected:
            return self.expected.get(instance_type or "", Expected())
        known = [asdict(each) for each in self.expected.values()]
        return Expected(**{key: min(table[key] for table in known) for key in known[0]})


def load(path: Path) -> InstanceFile:
    """Read and check the file. Raises InstanceFileError, which names every key that is wrong."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InstanceFileError(f"instance file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InstanceFileError(f"instance file {path}: not TOML: {error}") from error
    return checked(
        InstanceFile,
        raw,
        lambda said: InstanceFileError("\n".join(f"instance file {path}: {each}" for each in said)),
    )
