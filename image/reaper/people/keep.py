"""``gpu-fleet keep`` and ``release``: a person's hold on a machine, as tags that the sweep obeys."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import click

from image.instance import instance_file, paths
from image.instance.metadata import Metadata
from image.reaper.calls import Calls
from image.reaper.errors import CloudError, ConfigurationError, InstanceFileError
from image.reaper.model import KEEP_AT_MOST, TAG_KEEP_REASON, TAG_KEEP_UNTIL, TAG_MANAGED, TAG_STACK, Instance
from image.reaper.options import where_options
from image.reaper.place import REGION_VARIABLES, Asked, cloud_of_environment, place_of, region_of_environment
from image.reaper.sweep import cloud as clouds
from image.reaper.sweep.cloud import Machines
from image.reaper.sweep.marks import hold_of
from image.reaper.times import format_time, parse_duration

LONGEST_REASON = 128  # characters of a tag's value: 256 in EC2's API, 128 in ECS's
instance_option = click.option(
    "--instance",
    "--instance-id",
    "instance_id",
    metavar="ID",
    help="Which instance; by default the one this runs on.",
)


@dataclass(frozen=True)
class Wish:
    """A hold that somebody asks for.

    Attributes:
        until: when it ends.
        reason: why.
        shortened: it was asked for longer than is allowed.
    """

    until: datetime
    reason: str
    shortened: bool

    def tags(self) -> dict[str, str]:
        """The hold as tags."""
        return {TAG_KEEP_UNTIL: format_time(self.until), TAG_KEEP_REASON: self.reason}


def wish(duration: timedelta, reason: str, now: datetime) -> Wish:
    """A hold from now on, for 14 days at most.

    Raises:
        ConfigurationError: the reason is empty or does not fit a tag.
    """
    reason = " ".join(reason.split())
    if not 1 <= len(reason) <= LONGEST_REASON:
        raise ConfigurationError(
            f"--reason of {len(reason)} characters; allowed: 1 to {LONGEST_REASON}, say 'paper deadline'"
        )
    # A second less: the sweep's clock may be behind, and it doubts a hold of more than 14 days.
    longest = KEEP_AT_MOST - timedelta(minutes=1)
    return Wish(now + min(duration, longest), reason, shortened=duration > KEEP_AT_MOST)


@click.command(
    epilog="\b\nExample:\n  gpu-fleet keep 2d --reason 'paper deadline' --instance i-0abc --stack aws-dev"
)
@click.argument("duration")
@click.option("--reason", required=True, help="Why, for those who pay.")
@instance_option
@where_options
def keep(duration: str, reason: str, instance_id: str | None, asked: Asked) -> None:
    """Keep a machine for DURATION (90m, 8h, 2d; 14 days at most), used or not."""
    wanted = wish(parse_duration(duration), reason, datetime.now(UTC))
    target = Target.find(instance_id, asked)
    for warning in target.warnings():
        click.echo(f"warning: {warning}", err=True)
    target.machines.tag([target.id], wanted.tags())
    if wanted.shortened:
        click.echo(
            f"warning: {duration} is longer than {KEEP_AT_MOST.days} days; shortened to that", err=True
        )
    click.echo(f"{target.id} is kept until {format_time(wanted.until)}: {wanted.reason}")


@click.command(epilog="\b\nExample:\n  gpu-fleet release --instance i-0123456789abcdef0 --stack aws-dev")
@instance_option
@where_options
def release(instance_id: str | None, asked: Asked) -> None:
    """Keep a machine no longer: it goes when it is idle, like any other."""
    target = Target.find(instance_id, asked)
    held = TAG_KEEP_UNTIL in target.tags
    target.machines.untag([target.id], [TAG_KEEP_UNTIL, TAG_KEEP_REASON])
    click.echo(f"{target.id} is kept no longer" if held else f"{target.id} was not kept")


@dataclass(frozen=True)
class Target:
    """The machine that a person means.

    Attributes:
        id: its id.
        tags: its tags now.
        machines: what tags it.
    """

    id: str
    tags: dict[str, str]
    machines: Machines

    @classmethod
    def find(cls, instance_id: str | None, asked: Asked) -> "Target":
        """Look the machine up.

        Raises:
            ConfigurationError: no region is known, the reaper never touches the machine, or it is of another
                stack than was named.
            CloudError: the cloud or the metadata service does not answer.
        """
        found = instance_id or own_instance_id()
        cloud, region = whereabouts(asked)
        calls = Calls(lambda: datetime.now(UTC))
        machines: Machines = clouds.module(cloud).machines(region, calls)
        tags = machines.tags(found)
        if tags.get(TAG_MANAGED) != "true":
            raise ConfigurationError(
                f"{found} does not carry {TAG_MANAGED}=true: the reaper never touches it, or it is not there"
            )
        if asked.stack and tags.get(TAG_STACK) != asked.stack:
            raise ConfigurationError(f"{found} is of stack {tags.get(TAG_STACK)!r}, not of {asked.stack!r}")
        return cls(found, tags, machines)

    def warnings(self) -> list[str]:
        """What is wrong with the hold that the machine has now."""
        now = datetime.now(UTC)
        hold = hold_of(Instance(self.id, "", "running", now, self.tags), now)
        return [f"{hold.problem}; replaced"] if hold and hold.problem else []


def own_instance_id() -> str:
    """The machine that this runs on.

    Raises:
        ConfigurationError: it is none of the fleet's.
    """
    try:
        machine = instance_file.load(paths.instance_file())
        found = Metadata(machine.cloud).get("instance-id")
    except (InstanceFileError, CloudError) as error:
        raise ConfigurationError(
            f"--instance-id is missing, and this is no machine of a fleet: {error}"
        ) from error
    if not found:
        raise ConfigurationError("--instance-id is missing, and the metadata service does not know it")
    return found


def whereabouts(asked: Asked) -> tuple[str, str]:
    """Cloud and region: of the stack that is named, else of the flags, this instance, the environment.

    Raises:
        ConfigurationError: no region is known.
    """
    if asked.stack:
        place = place_of(asked)
        return place.cloud, place.region
    try:
        machine = instance_file.load(paths.instance_file())
        return asked.cloud or machine.cloud, asked.region or machine.region
    except InstanceFileError as error:
        cloud = asked.cloud or cloud_of_environment()
        region = asked.region or region_of_environment(cloud)
        if region is None:
            raise ConfigurationError(
                f"--stack and --region are missing, and neither instance.toml nor "
                f"{REGION_VARIABLES[cloud][0]} says the region"
            ) from error
        return cloud, region
