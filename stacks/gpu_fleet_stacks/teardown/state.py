"""The state of a stack, as ``pulumi stack export`` prints it. Pure."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.teardown.errors import TeardownError

STACK_TYPE = "pulumi:pulumi:Stack"
PROVIDER_PREFIX = "pulumi:providers:"
BUCKETS = frozenset({"aws:s3/bucket:Bucket", "alicloud:oss/bucket:Bucket"})
FILE_SYSTEMS = frozenset(
    {
        "aws:efs/fileSystem:FileSystem",
        "aws:fsx/lustreFileSystem:LustreFileSystem",
        "alicloud:nas/fileSystem:FileSystem",
    }
)
GROUPS = frozenset({"aws:autoscaling/group:Group", "alicloud:ess/scalingGroup:ScalingGroup"})
REPLICA_KEY = "-replica-key"  # end of the name (replica.py of both clouds)
KEYS = frozenset({"aws:kms/key:Key", "alicloud:kms/key:Key"})
ALIASES = frozenset({"aws:kms/alias:Alias", "alicloud:kms/alias:Alias"})
# Settings of a store, such as its policy: they stay as long as their store does.
SETTINGS = frozenset(
    {
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "aws:s3/bucketVersioning:BucketVersioning",
        "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        "aws:s3/bucketPolicy:BucketPolicy",
        "aws:s3/bucketLogging:BucketLogging",
        "aws:efs/fileSystemPolicy:FileSystemPolicy",
        "aws:efs/backupPolicy:BackupPolicy",
        "alicloud:oss/bucketAcl:BucketAcl",
        "alicloud:oss/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "alicloud:oss/bucketHttpsConfig:BucketHttpsConfig",
        "alicloud:oss/bucketPolicy:BucketPolicy",
    }
)


@dataclass(frozen=True)
class StateResource:
    """One resource of a state.

    Attributes:
        urn, type, id, parent: the engine's values; ``id`` is empty for a component.
        needs: URNs that it depends on: dependencies, parent, provider.
    """

    urn: str
    type: str
    id: str = ""
    parent: str = ""
    needs: frozenset[str] = frozenset()
    protected: bool = False
    inputs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The logical name."""
        return self.urn.rpartition("::")[2]


def read(text: str) -> tuple[StateResource, ...]:
    """Return the resources of an export, without those that are pending deletion.

    Raises TeardownError if the text is no export of a stack.
    """
    try:
        listed = (json.loads(text).get("deployment") or {}).get("resources") or []
        return tuple(_resource(raw) for raw in listed if not raw.get("delete"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TeardownError(f"`pulumi stack export` printed no state: {error}") from error


def _resource(raw: dict[str, Any]) -> StateResource:
    # the engine writes a provider as URN::id
    provider = raw.get("provider", "").rpartition("::")[0]
    by_property = raw.get("propertyDependencies") or {}
    needs = {
        *(raw.get("dependencies") or ()),
        *(urn for urns in by_property.values() for urn in urns or ()),
        raw.get("parent", ""),
        raw.get("deletedWith", ""),
        provider,
    }
    return StateResource(
        urn=raw["urn"],
        type=raw["type"],
        id=raw.get("id", ""),
        parent=raw.get("parent", ""),
        needs=frozenset(needs - {""}),
        protected=bool(raw.get("protect")),
        inputs=raw.get("inputs") or {},
    )


def of(resources: Iterable[StateResource], types: Collection[str]) -> list[StateResource]:
    """Return the resources of some types."""
    return [resource for resource in resources if resource.type in types]


def kind_of(stack: str, store: StateResource) -> str:
    """Return a store's kind: ``data`` for ``gpu-fleet-aws-dev-data``."""
    return store.name.removeprefix(f"{naming.prefixed(stack)}-")


def kept_with(resources: Sequence[StateResource], stores: Collection[str]) -> frozenset[str]:
    """Return the resources that ``--exclude`` must name to keep stores usable: with settings, key and alias.

    The engine keeps what these depend on, but not what depends on them. A state may lack the dependencies of
    settings on their store and of a bucket on the key.
    """
    chosen = {resource.urn for resource in resources if resource.urn in stores}
    settings = {resource.urn for resource in of(resources, SETTINGS) if resource.needs & chosen}
    return frozenset(chosen | settings | key_parts(resources))


def key_parts(resources: Iterable[StateResource]) -> frozenset[str]:
    """Return the URNs of the key and its alias."""
    return frozenset(resource.urn for resource in of(resources, KEYS | ALIASES))


def outlasting_keys(resources: Iterable[StateResource]) -> list[StateResource]:
    """Return the keys that the engine leaves alone: not that of a replica, which has two buckets alone."""
    return [key for key in of(resources, KEYS) if not key.name.endswith(REPLICA_KEY)]


def is_replica(resource: StateResource) -> bool:
    """Return whether a store stands in ``storage.replica_region``."""
    return "-replica-" in resource.name


def closure(resources: Iterable[StateResource], chosen: Collection[str]) -> frozenset[str]:
    """Return some resources with everything that they depend on, which is what ``--exclude`` keeps."""
    by_urn = {resource.urn: resource for resource in resources}
    urns: set[str] = set()
    ahead = [urn for urn in chosen if urn in by_urn]
    while ahead:
        urn = ahead.pop()
        if urn not in urns:
            urns.add(urn)
            ahead += [other for other in by_urn[urn].needs if other in by_urn]
    return frozenset(urns)


def real(resources: Iterable[StateResource]) -> list[StateResource]:
    """Return the resources that exist in the cloud: no components, no providers, not the stack itself."""
    return [
        resource
        for resource in resources
        if resource.id and resource.type != STACK_TYPE and not resource.type.startswith(PROVIDER_PREFIX)
    ]
