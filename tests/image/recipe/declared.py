"""The user data that a shipped stack declares: its program, run under mocks that only write down."""

import asyncio
import base64
import contextvars
from typing import Any

import pulumi
import yaml
from pulumi.runtime import MockCallArgs, MockResourceArgs, Mocks, set_mocks
from pulumi.runtime.settings import reset_options
from pulumi.runtime.stack import run_pulumi_func

from gpu_fleet_stacks.alicloud.stack import build as build_alicloud
from gpu_fleet_stacks.aws.stack import build as build_aws
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.payload import instance_file
from gpu_fleet_stacks.settings import Stack

# What carries user data: launch templates, and on Alibaba Cloud scaling configurations too.
STARTS = {
    "aws:ec2/launchTemplate:LaunchTemplate",
    "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate",
    "alicloud:ess/scalingConfiguration:ScalingConfiguration",
}
AN_IMAGE = "ami-0123456789abcdef0"
MONITOR_GROUP = "alicloud:cms/monitorGroup:MonitorGroup"


class LaunchTemplates(Mocks):
    """Gives every resource its inputs back as outputs, and keeps the user data of launch templates."""

    def __init__(self) -> None:
        self.user_data: dict[str, str] = {}

    def new_resource(self, args: MockResourceArgs) -> tuple[str, dict[str, Any]]:
        """Write down what a launch template would hand its instances."""
        if args.typ in STARTS:
            self.user_data[args.name] = base64.b64decode(args.inputs["userData"]).decode()
        made = {"arn": f"arn:aws:mock:::{args.name}", "name": args.name}
        made |= dict.fromkeys(("dnsName", "mountTargetDomain"), f"{args.name}.example")
        # an application group's id is a number
        identifier = "1" if args.typ == MONITOR_GROUP else f"{args.name}-id"
        return identifier, made | args.inputs

    def call(self, args: MockCallArgs) -> dict[str, Any]:
        """An account in which nothing was built yet; what else is asked has nothing to do with user data."""
        nothing_built = {"images": [], "names": [], "values": [], "value": AN_IMAGE}
        return {"id": args.token, "json": "{}"} | nothing_built


def user_data(stack: Stack) -> dict[str, str]:
    """Launch template -> the text cloud-init would read on an instance started from it."""
    mocks = LaunchTemplates()
    build = build_aws if stack.cloud is Cloud.AWS else build_alicloud

    async def declare() -> None:
        reset_options()
        set_mocks(mocks, project="gpu-fleet", stack=stack.name, preview=False)
        await run_pulumi_func(lambda: _export(build(stack)))

    contextvars.copy_context().run(asyncio.run, declare())
    return mocks.user_data


def instance_file_of(user_data_text: str) -> str:
    """The file that cloud-init writes from the user data."""
    files = yaml.safe_load(user_data_text)["write_files"]
    return next(file["content"] for file in files if file["path"] == instance_file.PATH)


def _export(values: dict[str, Any]) -> None:
    for name, value in values.items():
        pulumi.export(name, value)
