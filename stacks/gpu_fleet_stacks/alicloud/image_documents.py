"""Steps of the image's builder, as commands of ECS's image components. Pure."""

from gpu_fleet_stacks.payload import image_files
from gpu_fleet_stacks.settings import Stack

# www.alibabacloud.com/help/en/ecs/developer-reference/api-ecs-2014-05-26-createimagecomponent
LARGEST_COMPONENT_BYTES = 16_384
FILES = "/var/cache/gpu-fleet/files"


def component_content(stack: Stack, payload: image_files.ImageFile) -> str:
    """Return the component that fetches the payload inside the network, checks its hash, and runs it.

    Raises ValueError when it is larger than the cloud takes.
    """
    host = f"{stack.bucket_name('records')}.oss-{stack.region}-internal.aliyuncs.com"
    folder = "/opt/gpu-fleet-recipe"
    content = "\n".join(
        (
            f"RUN mkdir -p {folder} {FILES}",
            f"RUN curl -fsS --retry 5 -o {folder}.tar https://{host}/{payload.object_key}",
            f"RUN echo '{payload.sha256}  {folder}.tar' | sha256sum -c -",
            f"RUN tar -xf {folder}.tar -C {folder}",
            f"RUN TARGET=alicloud FILES={FILES} {folder}/provision.sh",
            "RUN /usr/libexec/gpu-fleet/check-image",
            f"RUN rm -rf {folder} {folder}.tar {FILES}",
        )
    )
    if len(content) > LARGEST_COMPONENT_BYTES:
        raise ValueError(f"component of {len(content)} bytes; {LARGEST_COMPONENT_BYTES} allowed")
    return content
