"""``gpu-fleet keep`` and ``release``: through this instance's agent, or with a user's own credentials."""

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from gpu_fleet_image.console.users import own_agent
from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core import instance_file, paths
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.handshake import Exchange, MarkQuestion, pool_caller, read_replies, replies_of
from gpu_fleet_image.core.holds import Caller, KeepTarget, Output, managed, wish
from gpu_fleet_image.core.model import KEEP_AT_MOST, TAG_POOL, TAG_STACK
from gpu_fleet_image.core.options import where_options
from gpu_fleet_image.core.place import (
    REGION_VARIABLES,
    Asked,
    Place,
    account_of,
    cloud_of_environment,
    ledger_uri,
    place_of,
    region_of_environment,
)
from gpu_fleet_image.core.reaper_errors import ConfigurationError, InstanceFileError
from gpu_fleet_image.core.shared_options import note
from gpu_fleet_image.core.times import parse_duration

if TYPE_CHECKING:
    from gpu_fleet_image.core.cloud import Instances

_instance_option = click.option(
    "--instance",
    "--instance-id",
    "instance_id",
    metavar="ID",
    help="The instance; by default the one this runs on.",
)


_holder_option = click.option(
    "--holder", metavar="NAME", help="The user who keeps it, if that is not you and you may change it."
)


@click.command(
    epilog="\b\nExample:\n  gpu-fleet keep 2d --reason 'paper deadline' --instance i-0abc --stack aws-dev"
)
@click.argument("duration")
@click.option("--reason", required=True, help="Reason, for the budget's owner.")
@_instance_option
@_holder_option
@where_options
def keep(duration: str, reason: str, instance_id: str | None, holder: str | None, asked: Asked) -> None:
    """Keep an instance for DURATION (90m, 8h, 2d; 14 days at most), used or not."""
    wanted = wish(parse_duration(duration), reason, datetime.now(UTC))
    if wanted.shortened:
        note(f"warning: {duration} is longer than {KEEP_AT_MOST.days} days; shortened to that")
    if _asks_agent(asked, instance_id, holder):
        own_agent.ask("keep", instance_id, duration=duration, reason=reason)
        return
    say(_target_of(instance_id, asked).keep(wanted, caller_of(asked, holder)))


@click.command(epilog="\b\nExample:\n  gpu-fleet release --instance i-0123456789abcdef0 --stack aws-dev")
@_instance_option
@_holder_option
@where_options
def release(instance_id: str | None, holder: str | None, asked: Asked) -> None:
    """End the hold on an instance: it is terminated when it is idle, like any other.

    A hold of another user can be released by that user, the instance's owner, and operators: with sudo on the
    instance, elsewhere with --holder and the cloud's permission to tag it.
    """
    if _asks_agent(asked, instance_id, holder):
        own_agent.ask("release", instance_id)
        return
    say(_target_of(instance_id, asked).release(caller_of(asked, holder)))


def _asks_agent(asked: Asked, instance_id: str | None, holder: str | None) -> bool:
    """Return whether this instance's agent is asked; raises ConfigurationError for a flag that it refuses."""
    is_meant = own_agent.is_meant(asked, instance_id)
    if is_meant and holder is not None:
        raise ConfigurationError(f"--holder {holder}: not allowed on an instance; operators use sudo there")
    return is_meant


def caller_of(asked: Asked, holder: str | None) -> Caller:
    """Return the caller, by the cloud's name of the credentials. Raises CloudError."""
    cloud, region = _whereabouts(asked)
    _, name = clouds.module(cloud).caller(region, Calls(lambda: datetime.now(UTC)))
    return Caller(name.rpartition(":")[2], holder or "")


def say(output: Output) -> None:
    """Print a command's output."""
    for warning in output.warnings:
        note(f"warning: {warning}")
    for line in output.lines:
        click.echo(line)


def _target_of(instance_id: str | None, asked: Asked) -> KeepTarget:
    """Look the instance up with a user's own credentials.

    Raises:
        ConfigurationError: no instance is named, no region is known, the reaper never touches the instance,
            or it belongs to another stack.
        CloudError: the cloud does not answer.
    """
    if instance_id is None:
        raise ConfigurationError("--instance is missing, and this is no instance of a fleet")
    cloud, region = _whereabouts(asked)
    instances: Instances = clouds.module(cloud).instances(region, Calls(lambda: datetime.now(UTC)))
    tags = managed(instance_id, instances)
    if asked.stack and tags.get(TAG_STACK) != asked.stack:
        raise ConfigurationError(f"{instance_id} is of stack {tags.get(TAG_STACK)!r}, not of {asked.stack!r}")
    place = Place(tags.get(TAG_STACK, ""), cloud, region, asked.account_id or "")
    return KeepTarget(
        instance_id, instances, partial(_of_another, instance_id, place, tags.get(TAG_POOL, ""))
    )


def _of_another(instance_id: str, place: Place, pool: str, mark: datetime) -> Exchange:
    """Return the exchange of an instance with the sweep, with a user's own credentials.

    An instance without a reply is stopped: only the sweep decides about it.
    """
    calls = Calls(lambda: datetime.now(UTC))
    uri = ledger_uri(place, place.account_id or account_of(place))
    store = clouds.module(place.cloud).store(place.region, calls, uri)
    known = pool_caller(pool, instance_id) if place.cloud == "alicloud" else ""
    caller = replies_of(
        read_replies(store, [MarkQuestion(instance_id, mark, known)]).replies, instance_id, mark
    ).caller
    return Exchange(store, caller or instance_id, mark)


def _whereabouts(asked: Asked) -> tuple[str, str]:
    """Return cloud and region: of the named stack, else of the flags, this instance, the environment.

    Raises ConfigurationError if no region is known.
    """
    if asked.stack:
        place = place_of(asked)
        return place.cloud, place.region
    try:
        instance = instance_file.load(paths.instance_file())
        return asked.cloud or instance.cloud, asked.region or instance.region
    except InstanceFileError as error:
        cloud = asked.cloud or cloud_of_environment()
        region = asked.region or region_of_environment(cloud)
        if region is None:
            raise ConfigurationError(
                f"--stack and --region are missing, and neither instance.toml nor "
                f"{REGION_VARIABLES[cloud][0]} says the region"
            ) from error
        return cloud, region
