"""The text of a new stack file from answers, and the problems that `check` finds in it. Pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud, InstanceType
from gpu_fleet_stacks.core.errors import Problem, SettingsError
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.releases import version
from gpu_fleet_stacks.settings import Stack, reader, yaml_text

DLAMI = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
CURRENCY = {Cloud.AWS: "USD", Cloud.ALICLOUD: "CNY"}
# Placeholders for answers that are not given yet; none of them is valid for any user.
PLACEHOLDERS = {
    Cloud.AWS: {"account_id": "123456789012", "image": ""},
    Cloud.ALICLOUD: {"account_id": "1234567890123456", "image": "m-00000000000000000000"},
}
FIRST_TYPE = {Cloud.AWS: "g5.xlarge", Cloud.ALICLOUD: "ecs.gn7i-c8g1.2xlarge"}
SUGGESTIONS = 6
MARGIN, STEP = Decimal("1.1"), 500  # a suggested budget's factor over the worst month, and its rounding


@dataclass(frozen=True)
class NewStack:
    """The answers that make a stack file.

    Attributes:
        image: id of an image; empty for AWS's own deep-learning image.
        kms_instance_id: on Alibaba Cloud, where keys outside of a KMS instance rotate yearly; else empty.
        assume: what has no list price -> its price.
    """

    name: str
    cloud: Cloud
    region: str
    account_id: str
    zones: tuple[str, ...]
    types: tuple[str, ...]
    recipients: tuple[str, ...]
    monthly: int
    owner: str = "platform"
    cidr: str = "10.20.0.0/16"
    pool: str = "dev"
    max_size: int = 2
    image: str = ""
    kms_instance_id: str = ""
    assume: Mapping[str, str] = field(default_factory=dict)


def zones_of(cloud: Cloud, region: str) -> tuple[str, ...]:
    """Return the usual names of a region's first two zones; the cloud may have others."""
    dash = "-" if cloud is Cloud.ALICLOUD and region[-1:].isalpha() else ""
    return f"{region}{dash}a", f"{region}{dash}b"


def starting_from(name: str, cloud: Cloud, region: str) -> NewStack:
    """Return placeholder answers until a user gives their own."""
    stand_in = PLACEHOLDERS[cloud]
    return NewStack(
        name=name,
        cloud=cloud,
        region=region,
        account_id=stand_in["account_id"],
        zones=zones_of(cloud, region),
        types=(FIRST_TYPE[cloud],),
        recipients=("you@example.com",),
        monthly=1_000_000_000,
        image=stand_in["image"],
    )


def suggested(cloud: Cloud, region: str) -> list[InstanceType]:
    """Return types that run the bundled image: those priced in the region first, then the cheapest."""

    def rank(kind: InstanceType) -> tuple[bool, bool, Decimal]:
        price = kind.price
        amount = price.amount_per_hour if price else Decimal("Infinity")
        return price is None, price is None or price.region != region, amount

    fitting = [kind for kind in catalog.load().of_cloud(cloud) if kind.runs_bundled_image]
    return sorted(fitting, key=rank)[:SUGGESTIONS]


def text_of(answers: NewStack, first_line: str = "") -> str:
    """Return the file, with comments on what a user may want to change."""
    cost = ", ".join(_priced(answers.types)) or "see `gpu-fleet catalog list`"
    image = f"    id: {_scalar(answers.image)}" if answers.image else f"    parameter: {DLAMI}"
    key = f"\n    kms_instance_id: {_scalar(answers.kms_instance_id)}" if answers.kms_instance_id else ""
    assume = f"\n    assume: {_flow(answers.assume)}" if answers.assume else ""
    slots = _flow({zone: number for number, zone in enumerate(answers.zones)})
    return f"""\
{first_line}
# Stack {_scalar(answers.name)}, made by `gpu-fleet new`. `gpu-fleet schema` says what each key means.
config:
  pulumi:disable-default-providers: ["*"]
  gpu-fleet:version: {version.running()} # of gpu-fleet; an older one refuses the file
  gpu-fleet:cloud: {answers.cloud}
  gpu-fleet:region: {_scalar(answers.region)}
  gpu-fleet:account_id: {_scalar(answers.account_id)} # quoted: it is a text, not a number
  gpu-fleet:owner: {_scalar(answers.owner)}
  gpu-fleet:protected: false # true: buckets, keys and file systems refuse deletion
  gpu-fleet:network:
    cidr: {_scalar(answers.cidr)} # every stack that is to reach another needs a range of its own
    zones: {_flow(answers.zones)} # in the order of preference
    slots: {slots} # for good: which part of the network each zone has
    nat: one # none (with interface_endpoints: true), one, per_zone
  gpu-fleet:storage:
    home: true # a shared home on every instance{key}
  gpu-fleet:pools:
    - name: {_scalar(answers.pool)}
      types: {_flow(answers.types)} # an hour on demand: {cost}
      size: {{min: 0, desired: 0, max: {answers.max_size}}}
      market: on-demand # spot, reservation, capacity-block
      idle: {{after_hours: 12, grace_minutes: 60}} # unused so long: owner notified, then terminated
  gpu-fleet:budget:
    monthly: {answers.monthly} # {CURRENCY[answers.cloud]}; a stack whose worst month passes it is refused
    currency: {CURRENCY[answers.cloud]}
    recipients: {_flow(answers.recipients)}{assume}
  gpu-fleet:reaper:
    dry_run: false # true: decide and report, terminate nothing
    watch_days: 7 # the first week it only reports what it would have terminated; 0: act at once
    time_zone: UTC
  gpu-fleet:image:
{image}
"""


def _priced(names: tuple[str, ...]) -> Iterator[str]:
    for known in filter(None, map(catalog.load().find, names)):
        price = known.price
        said = f"{price.amount_per_hour} {price.currency} in {price.region}" if price else "unknown"
        yield f"{known.name} {said}"


def _scalar(value: str) -> str:
    """Return a text in YAML, quoted where it must be."""
    return yaml_text.written(value, flow=True)


def _flow(values: tuple[str, ...] | Mapping[str, object]) -> str:
    return yaml_text.written(dict(values) if isinstance(values, Mapping) else list(values), flow=True)


def settings_of(answers: NewStack) -> Stack:
    """Return the settings that ``check`` reads from the file. Raises SettingsError."""
    content = yaml_text.read(text_of(answers))
    return reader.from_config(answers.name, content["config"])


def problems(answers: NewStack) -> tuple[Problem, ...]:
    """Return everything that ``check`` would refuse."""
    try:
        settings_of(answers)
    except SettingsError as error:
        return error.problems
    return ()


def suggested_budget(answers: NewStack) -> int:
    """Return the worst month of valid answers plus a tenth, rounded up to a multiple of 500."""
    worst = estimate(settings_of(answers)).worst_month.amount
    return max(STEP, math.ceil(worst * MARGIN / STEP) * STEP)
