"""Image of the instances, made by the cloud from the recipe's payload or from a disk that was baked here."""

from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud.image_documents import component_content
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import image_files
from gpu_fleet_stacks.settings import Stack

# A build needs no GPU: the driver's modules are precompiled for the base image's kernel.
BUILDER_TYPE = "ecs.c7.2xlarge"
# The builder downloads packages from the internet and listens on no port.
BUILDER_BANDWIDTH_MBPS = 100


@dataclass(frozen=True)
class ImageArgs:
    """Inputs of the image.

    Attributes:
        subnet_ids: zone -> private vSwitch; the builder runs in the first zone.
        records_bucket: the bucket of payload and disk; known once its policy lets the builder read.
    """

    stack: Stack
    subnet_ids: dict[str, pulumi.Output[str]]
    records_bucket: pulumi.Output[str]


class Image(pulumi.ComponentResource):
    """A build pipeline where the settings name a base, an imported image where they name a disk.

    Attributes:
        image_id: the image of launch templates: the newest build if the stack follows its builds and has one,
            or else the image in the settings.
        pipeline_id: to start a build; empty without ``image.base_id``.
        imported_id: the imported image; empty without ``image.disk``.
    """

    image_id: str
    pipeline_id: pulumi.Output[str]
    imported_id: pulumi.Output[str]

    def __init__(self, name: str, args: ImageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Image", name, None, opts)
        self._name, self._args = name, args
        self._child = pulumi.ResourceOptions(parent=self)
        image, nothing = args.stack.image, pulumi.Output.from_input("")
        self.image_id = self._image_id()
        self.pipeline_id = self.imported_id = nothing
        if image.base_id is not None:
            self.pipeline_id = self._pipeline(image.base_id, image_files.recipe(args.stack))
        if image.disk is not None:
            self.imported_id = self._imported(image_files.read("image.disk", image.disk))
        self.register_outputs({"pipeline_id": self.pipeline_id, "imported_id": self.imported_id})

    def _image_id(self) -> str:
        """Return the image's id, looked up at each preview and update: a launch template holds an id."""
        stack = self._args.stack
        newest = self._newest(stack) if stack.image.follows_builds else None
        return newest or str(stack.image.id)

    def _newest(self, stack: Stack) -> str | None:
        images = alicloud.ecs.get_images(
            owners="self",
            status="Available",
            name_regex=f"^{image_files.built_name(stack)}",
            opts=pulumi.InvokeOptions(parent=self),
        ).images
        newest = max(images, key=lambda image: str(image.creation_time), default=None)
        return None if newest is None else str(newest.image_id)

    def _object(self, label: str, file: image_files.ImageFile) -> alicloud.oss.BucketObject:
        """Declare an object under OSS's own key: the builder has no identity to use the stack's key."""
        return alicloud.oss.BucketObject(
            f"{self._name}-{label}",
            bucket=self._args.records_bucket,
            key=file.object_key,
            source=str(file.path),
            server_side_encryption="AES256",
            acl="private",
            opts=self._child,
        )

    def _pipeline(self, base_id: str, payload: image_files.ImageFile) -> pulumi.Output[str]:
        """Declare the pipeline; return its id.

        Each payload has a new component: the name holds the hash, and the content cannot change.
        """
        stack = self._args.stack
        stored = self._object("payload", payload)
        tags = naming.tags(stack.name, stack.owner)
        component = alicloud.ecs.EcsImageComponent(
            f"{self._name}-recipe",
            image_component_name=naming.prefixed(stack.name, payload.sha256[:12]),
            component_type="Build",
            system_type="Linux",
            content=component_content(stack, payload),
            description=f"The recipe of gpu-fleet, sha256 {payload.sha256}",
            tags=tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[stored]),
        )
        zone = stack.network.home_zone
        pipeline = alicloud.ecs.EcsImagePipeline(
            f"{self._name}-pipeline",
            name=image_files.ecs_pipeline_name(stack),
            description=f"Builds what gpu-fleet stack {stack.name} boots",
            image_name=image_files.built_name(stack),
            base_image=base_id,
            base_image_type="IMAGE",
            build_content=pulumi.Output.concat("COMPONENT ", component.id),
            instance_type=BUILDER_TYPE,
            system_disk_size=stack.image.size_gib,
            vswitch_id=self._args.subnet_ids[zone],
            internet_max_bandwidth_out=BUILDER_BANDWIDTH_MBPS,
            delete_instance_on_failure=True,
            tags=tags,
            opts=self._child,
        )
        return pipeline.id

    def _imported(self, disk: image_files.ImageFile) -> pulumi.Output[str]:
        stack = self._args.stack
        stored = self._object("disk", disk)
        imported = alicloud.ecs.ImageImport(
            f"{self._name}-disk",
            image_name=naming.prefixed(stack.name, disk.sha256[:12]),
            description=f"Baked outside of the cloud, sha256 {disk.sha256}",
            architecture="x86_64",
            os_type="linux",
            platform="Others Linux",
            license_type="Auto",
            disk_device_mappings=[
                alicloud.ecs.ImageImportDiskDeviceMappingArgs(
                    format="qcow2",
                    oss_bucket=stored.bucket,
                    oss_object=stored.key,
                    disk_image_size=stack.image.size_gib,
                )
            ],
            opts=self._child,
        )
        return imported.id
