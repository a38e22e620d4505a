"""``gpu-fleet keep`` and ``release``: a user's hold on an instance, as tags that the sweep obeys."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import click

from image.instance import instance_file, paths
from image.instance.metadata import Metadata
from image.reaper import cloud as clouds
from image.reaper.agent import cloud as agent_cloud
from image.reaper.calls import Calls
from image.reaper.cloud import Instances
from image.reaper.errors import CloudError, ConfigurationError, InstanceFileError, TooLateError
from image.reaper.handshake import Exchange, MarkQuestion, Winner, heard, pool_caller, said_of
from image.reaper.marks import hold_in, hold_of, mark_of
from image.reaper.model import (
    KEEP_AT_MOST,
    TAG_KEEP_REASON,
    TAG_KEEP_UNTIL,
    TAG_MANAGED,
    TAG_POOL,
    TAG_STACK,
    Instance,
)
from image.reaper.options import where_options
from image.reaper.place import (
    REGION_VARIABLES,
    Asked,
    Place,
    account_of,
    cloud_of_environment,
    ledger_uri,
    place_of,
    region_of_environment,
)
from image.reaper.times import format_time, parse_duration

# A clock that is behind by less still finds a due mark due. Clouds take calls of one that is off by a quarter
# of an hour (RequestTimeTooSkewed of S3 and OSS); who is further off cannot set the hold either.
NOT_DUE_YET = timedelta(minutes=30)
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
    """A hold that a user asks for.

    Attributes:
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
    """Keep an instance for DURATION (90m, 8h, 2d; 14 days at most), used or not."""
    wanted = wish(parse_duration(duration), reason, datetime.now(UTC))
    if wanted.shortened:
        click.echo(
            f"warning: {duration} is longer than {KEEP_AT_MOST.days} days; shortened to that", err=True
        )
    target = KeepTarget.find(instance_id, asked)
    for warning in target.warnings():
        click.echo(f"warning: {warning}", err=True)
    if not target.withdraw(wanted):
        raise TooLateError(_too_late(target.id))
    target.instances.tag([target.id], wanted.tags())
    if not target.withdraw(wanted):  # decided in between
        target.instances.untag([target.id], list(wanted.tags()))
        raise TooLateError(_too_late(target.id))
    click.echo(f"{target.id} is kept until {format_time(wanted.until)}: {wanted.reason}")


def _too_late(instance_id: str) -> str:
    return (
        f"too late: the sweep has decided to terminate or stop {instance_id}, where nothing ran. "
        "It is not kept; /scratch/keep is saved"
    )


@click.command(epilog="\b\nExample:\n  gpu-fleet release --instance i-0123456789abcdef0 --stack aws-dev")
@instance_option
@where_options
def release(instance_id: str | None, asked: Asked) -> None:
    """Keep an instance no longer: it is terminated when it is idle, like any other."""
    target = KeepTarget.find(instance_id, asked)
    now = datetime.now(UTC)
    held = hold_in(target.tags, now) is not None
    if held:
        # over, but still there: an earlier give-back stays void, and who was notified before is notified anew
        target.instances.tag([target.id], {TAG_KEEP_UNTIL: format_time(now)})
    click.echo(f"{target.id} is kept no longer" if held else f"{target.id} was not kept")


@dataclass(frozen=True)
class KeepTarget:
    """The instance that a user means.

    Attributes:
        records: where sweep and instance answer one another, and under which name the instance does so,
            for a mark.
    """

    id: str
    tags: dict[str, str]
    instances: Instances
    records: Callable[[datetime], Exchange]

    @classmethod
    def find(cls, instance_id: str | None, asked: Asked) -> "KeepTarget":
        """Look the instance up.

        Raises:
            ConfigurationError: no region is known, the reaper never touches the instance, or it is of another
                stack than was named.
            CloudError: the cloud or the metadata service does not answer.
        """
        wanted = instance_id or own_instance_id()
        cloud, region = whereabouts(asked)
        calls = Calls(lambda: datetime.now(UTC))
        instances: Instances = clouds.module(cloud).instances(region, calls)
        tags = instances.tags(wanted)
        if tags.get(TAG_MANAGED) != "true":
            raise ConfigurationError(
                f"{wanted} does not carry {TAG_MANAGED}=true: the reaper never touches it, or it is not there"
            )
        if asked.stack and tags.get(TAG_STACK) != asked.stack:
            raise ConfigurationError(f"{wanted} is of stack {tags.get(TAG_STACK)!r}, not of {asked.stack!r}")
        if instance_id is None:
            return cls(wanted, tags, instances, partial(_of_this_instance, wanted))
        place = Place(tags.get(TAG_STACK, ""), cloud, region, asked.account_id or "")
        return cls(wanted, tags, instances, partial(_of_another, wanted, place, tags.get(TAG_POOL, "")))

    def withdraw(self, wanted: Wish) -> bool:
        """Withdraw a mark that is due, unless the sweep has decided to end the instance.

        Returns:
            Whether nobody has decided otherwise, or the instance has refused that. A mark that is not due yet
            needs nothing: the hold is read again before anything is decided.

        Raises:
            CloudError: nobody knows; the message says so.
        """
        now = datetime.now(UTC)
        try:
            mark = mark_of(Instance(self.id, "", "running", now, self.instances.tags(self.id)))
            if mark is None or now < mark.reap_after - NOT_DUE_YET:
                return True
            exchange = self.records(mark.reap_after)
            decided = exchange.claim(Winner.WITHDRAWN, f"kept: {wanted.reason}", now)
            return decided is Winner.WITHDRAWN or exchange.is_refused()
        except CloudError as error:
            raise CloudError(
                f"{self.id} may be terminated any moment, and nobody can say that it is kept: {error}",
                error.code,
            ) from error

    def warnings(self) -> list[str]:
        """What is wrong with the hold that the instance has now."""
        now = datetime.now(UTC)
        hold = hold_of(Instance(self.id, "", "running", now, self.tags), now)
        return [f"{hold.problem}; replaced"] if hold and hold.problem else []


def _of_this_instance(instance_id: str, mark: datetime) -> Exchange:
    """By the instance's own role, which needs no list."""
    instance = instance_file.load(paths.instance_file())
    cloud = agent_cloud.connect(instance, Metadata(instance.cloud))
    return Exchange(cloud.store(), cloud.caller(instance_id), mark)


def _of_another(instance_id: str, place: Place, pool: str, mark: datetime) -> Exchange:
    """By a user's own credentials. Of one that says nothing, the sweep decides if it is stopped."""
    calls = Calls(lambda: datetime.now(UTC))
    uri = ledger_uri(place, place.account_id or account_of(place))
    store = clouds.module(place.cloud).store(place.region, calls, uri)
    known = pool_caller(pool, instance_id) if place.cloud == "alicloud" else ""
    caller = said_of(heard(store, [MarkQuestion(instance_id, mark, known)]).replies, instance_id, mark).caller
    return Exchange(store, caller or instance_id, mark)


def own_instance_id() -> str:
    """The instance that this runs on.

    Raises:
        ConfigurationError: it is none of the fleet's.
    """
    try:
        instance = instance_file.load(paths.instance_file())
        own = Metadata(instance.cloud).get("instance-id")
    except (InstanceFileError, CloudError) as error:
        raise ConfigurationError(
            f"--instance-id is missing, and this is no instance of a fleet: {error}"
        ) from error
    if not own:
        raise ConfigurationError("--instance-id is missing, and the metadata service does not know it")
    return own


def whereabouts(asked: Asked) -> tuple[str, str]:
    """Cloud and region: of the stack that is named, else of the flags, this instance, the environment.

    Raises:
        ConfigurationError: no region is known.
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
