"""What a stack file may say, as frozen dataclasses; their docstrings are the reference of the YAML keys.

Types, ranges and unknown keys are held by pydantic (see ``reader``); what must agree between keys is
held by ``rules``. Together they report every problem of a file at once.
"""

import dataclasses
import re
from decimal import Decimal
from enum import StrEnum
from ipaddress import IPv4Network
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.dataclasses import dataclass
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from stacks import naming
from stacks.catalog import Cloud
from stacks.catalog.numbers import AMOUNT, NUMBER, Switch, TextSwitch

EXACT = ConfigDict(extra="forbid")


@dataclasses.dataclass(frozen=True)
class Matching:
    """A check of text that says what is allowed in words; editors get the pattern.

    Attributes:
        pattern: of the whole text.
        allowed: what is said of other text.
    """

    pattern: str
    allowed: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        any_script = self.pattern.replace(r"\w", r"\w\u0080-\uffff")  # an editor's \w is that of ASCII
        return handler(schema) | {"pattern": f"^(?:{any_script})$"}

    def checked(self, text: str) -> str:
        """The text.

        Raises:
            ValueError: saying what is allowed.
        """
        if not re.fullmatch(self.pattern, text):
            raise ValueError(self.allowed)
        return text


PoolName = Annotated[
    str,
    Matching(r"[a-z][a-z0-9-]*[a-z0-9]", "must be lower case letters, digits and dashes, from a letter on"),
]
# What a tag's value may hold in IAM, Lambda and others, that refuse it after half of the stack is made:
# docs.aws.amazon.com/IAM/latest/APIReference/API_Tag.html; Alibaba Cloud takes 128 characters.
OWNER = r"[\w.:/=+@-]([\w .:/=+@-]{0,126}[\w.:/=+@-])?"
OWNER_RULE = (
    "128 letters, digits, spaces and any of _ . : / = + - @, and begin and end with none of the spaces"
)
Owner = Annotated[str, Matching(OWNER, f"must be 1 to {OWNER_RULE}")]
# docs.aws.amazon.com/IAM/latest/APIReference/API_Tag.html, which is the narrowest of AWS's services.
TagKey = Annotated[
    str,
    Matching(
        r"(?![Aa][Ww][Ss]:|acs:|aliyun|gpu-fleet:|Name$)" + OWNER,
        "must not be Name or begin with aws:, acs:, aliyun or gpu-fleet:, and otherwise be 1 to "
        + OWNER_RULE,
    ),
]
PolicyArn = Annotated[
    str,
    Matching(
        r"arn:aws(-us-gov)?:iam::(\d{12}|aws):policy/[\w+=,.@/-]{1,512}",
        "must be the ARN of a policy, such as arn:aws:iam::123456789012:policy/boundary",
    ),
]
# Of 20 that Alibaba Cloud takes; the stack's own are seven.
MOST_TAGS = 10
PoolOwner = Annotated[str, Matching(f"({OWNER})?", f"must be up to {OWNER_RULE}")]
Address = Annotated[str, Matching(r"[^@\s]+@[^@\s]+\.[^@\s]+", "must be an e-mail address")]
UserName = Annotated[
    str,
    Matching(
        r"[\w.:/=+@-]{1,64}( [\w.:/=+@-]{1,64})*", "must be a login name, or the owner of a pool or the stack"
    ),
]
# useradd's own default, without the capitals and dots that some file systems and mail confuse (useradd(8)).
AccountName = Annotated[
    str,
    Matching(r"[a-z][a-z0-9_-]{0,30}", "must be a login name: up to 31 lower case letters, digits, - and _"),
]
# sshd(8), "AUTHORIZED_KEYS FILE FORMAT"; DSA is no more, and RSA's length is held by a rule.
PublicKey = Annotated[
    str,
    Matching(
        r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)"
        r"|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com)"
        r" [A-Za-z0-9+/]{40,}={0,2}( [^\x00-\x1f]{1,128})?",
        "must be one line of a public key file, such as that of ~/.ssh/id_ed25519.pub",
    ),
]
# What both clouds take (API CreateSecret of AWS Secrets Manager and of Alibaba Cloud's KMS).
SecretName = Annotated[
    str,
    Matching(r"[A-Za-z0-9/_.-]{1,64}", "must be the name of a secret: its address stays out of this file"),
]
BucketPattern = Annotated[
    str,
    Matching(
        r"[a-z0-9.*-]{1,63}",
        "must be the name of an S3 bucket, lower case, with * for any letters, or * alone",
    ),
]
# docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html; OSS takes no dots
# (www.alibabacloud.com/help/en/oss/user-guide/bucket-naming-conventions).
BucketName = Annotated[
    str,
    Matching(
        r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
        "must be the name of a bucket: 3 to 63 lower case letters, digits, dashes and dots",
    ),
]
ProgramName = Annotated[str, Matching(r"[\w.+:-]{1,64}", "must be the name of a program, without its folder")]
Argument = Annotated[str, Matching(r"[^\x00]{1,256}", "must be a path or an argument of a program")]
Currency = Annotated[str, Matching(r"[A-Z]{3}", "must be an ISO 4217 code, such as USD")]
TimeOfDay = Annotated[str, Matching(r"([01]\d|2[0-3]):[0-5]\d", "must be a time of day from 00:00 to 23:59")]
Url = Annotated[str, Matching(r"https?://\S+", "must be an http or https URL")]
# Pulumi.yaml must give a key a default before a stack may leave it out; the empty text is that default.


def _no_number(network: object) -> object:
    """A network that is text: of a number ``ipaddress`` makes an address near 0.0.0.0."""
    if isinstance(network, int):
        raise ValueError("must be a network, such as 10.20.0.0/16")
    return network


Network = Annotated[IPv4Network, BeforeValidator(_no_number)]
OptionalUrl = Annotated[Url | None, BeforeValidator(lambda text: None if text == "" else text)]
# More than any account has of anything; beyond it the sums of the estimate outgrow their 28 digits.
LARGEST = 1_000_000_000
# what the log of instances is called in the names of both clouds
_INSTANCES = "instances"
Positive = Annotated[int, Field(gt=0, le=LARGEST), NUMBER]
Count = Annotated[int, Field(ge=0, le=LARGEST), NUMBER]
# What the sweep takes too: a policy beyond it would stop every sweep (image/reaper/policy.py).
MOST_INSTANCES, MOST_DAYS, MOST_HOURS = 100_000, 3650, 100_000
Instances = Annotated[int, Field(ge=0, le=MOST_INSTANCES), NUMBER]
SomeInstances = Annotated[int, Field(gt=0, le=MOST_INSTANCES), NUMBER]
Days = Annotated[int, Field(gt=0, le=MOST_DAYS), NUMBER]
PositiveDecimal = Annotated[Decimal, Field(gt=0, le=LARGEST, decimal_places=6), AMOUNT]
# More than any hour or GiB costs; less than 0.0001 of any currency is a slip.
AssumedPrice = Annotated[Decimal, Field(ge=Decimal("0.0001"), le=100_000, decimal_places=6), AMOUNT]
Percent = Annotated[int, Field(gt=0, le=100), NUMBER]
# The periods CloudWatch Logs knows (API PutRetentionPolicy), up to what Simple Log Service takes: 3000 days
# (alicloud_log_store, ``retention_period``).
RetentionDays = Annotated[
    Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922],
    NUMBER,
]


class Nat(StrEnum):
    """How private subnets reach the internet: not at all, through one gateway, or each through its own.

    ``one`` is cheap and dies with its zone; ``per_zone`` survives the loss of any zone; ``none`` needs
    ``network.interface_endpoints``.
    """

    NONE = "none"
    ONE = "one"
    PER_ZONE = "per_zone"


class Market(StrEnum):
    """How capacity is bought; the axis runs from dear and certain-to-stay to cheap and revocable.

    ``reservation`` and ``capacity-block`` start instances only inside capacity that is already paid for.
    """

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVATION = "reservation"
    CAPACITY_BLOCK = "capacity-block"


class Purpose(StrEnum):
    """Who uses the pool: users at a prompt, a distributed training job, or a service that follows load.

    Only ``serving`` and ``interactive`` pools scale by load unless ``scaling`` says otherwise: a training job
    of fixed world size gains nothing from an instance that joins late.
    """

    INTERACTIVE = "interactive"
    TRAINING = "training"
    SERVING = "serving"


class Grouping(StrEnum):
    """One scaling group over all zones, or one for each (EFA traffic never crosses zones)."""

    SINGLE = "single"
    PER_ZONE = "per_zone"


class IdleAction(StrEnum):
    """What the sweep does with an instance that stayed idle through its grace time."""

    STOP = "stop"
    TERMINATE = "terminate"


class ThresholdKind(StrEnum):
    """Compare money already spent, or the month's forecast, with the budget."""

    ACTUAL = "actual"
    FORECAST = "forecast"


class OnExceeded(StrEnum):
    """What the sweep does once the last thresholds of kind ``actual`` are passed.

    ``notify`` leaves it to users. ``freeze`` caps the training pools at the size they have when the last
    but one is passed, and lets them start nothing more when the last is; no running instance is touched, and
    ``gpu-fleet unfreeze`` or the next month lifts it.
    """

    NOTIFY = "notify"
    FREEZE = "freeze"


class BudgetScope(StrEnum):
    """Count what carries the stack's cost allocation tag (which must be activated), or the whole account."""

    TAG = "tag"
    ACCOUNT = "account"


class Queue(StrEnum):
    """What starts runs: each user on instances of their own, or a queue over all of them.

    ``slurm``: a controller of the stack's own, and every instance of every pool a node; jobs that wait raise
    the pools. It needs shared homes and accounts.
    """

    NONE = "none"
    SLURM = "slurm"


class WebhookKind(StrEnum):
    """Whose room a webhook writes to."""

    SLACK = "slack"
    TEAMS = "teams"
    DINGTALK = "dingtalk"


class ImageMode(StrEnum):
    """Where agent, gate and trainer come from; the axis runs from nothing prepared to nothing left to do.

    ``bootstrap``: the image is somebody else's, with an NVIDIA driver and Python 3.11 or newer; the first
    boot fetches the payload from the stack's bucket. ``baked``: the image comes from this project's recipe
    and carries all; with ``image.base_id`` it is the newest build, and until there is one they bootstrap.
    ``none``: nothing of ours runs; such instances are not tagged ``gpu-fleet:managed``, and nothing is
    reaped.
    """

    BOOTSTRAP = "bootstrap"
    BAKED = "baked"
    NONE = "none"

    @property
    def in_words(self) -> str:
        """What reports say of an image that instances boot."""
        return {"bootstrap": "bootstrapped", "none": "nothing of ours runs there"}.get(self.value, self.value)


@dataclass(frozen=True, config=EXACT)
class ExistingNetwork:
    """A VPC that somebody else runs: the stack adds its security groups, and changes and deletes nothing.

    Interface endpoints come with ``network.interface_endpoints`` alone; routes, NAT, the way to S3 or OSS and
    flow logs stay with the VPC's owner.

    Attributes:
        vpc_id: the VPC.
        subnets: zone -> the private subnet (AWS) or vSwitch (Alibaba Cloud) for instances in it, one for each
            of ``network.zones``.
        internet: whether their routes lead to the internet, through a NAT gateway or a proxy of the owner's;
            without, ``network.interface_endpoints`` or such endpoints of the owner's are needed (AWS; Alibaba
            Cloud's services answer inside every VPC).
    """

    vpc_id: str
    subnets: dict[str, str]
    internet: Switch = True


@dataclass(frozen=True, config=EXACT)
class NetworkSettings:
    """The private network of a stack: its own, or with ``existing`` somebody else's.

    Attributes:
        cidr: an RFC 1918 network from /16 to /23, for a network of the stack's own.
        zones: availability zones in order of preference.
        slots: zone -> which eighth of ``cidr`` is its own, 0 to 7; a zone keeps its slot for good. Left out,
            the order of ``zones`` numbers them, and must then never change but by a zone more at the end.
            File systems stand in the zone of the lowest.
        existing: a VPC by its id, in place of ``cidr``.
        nat: how private subnets reach the internet.
        interface_endpoints: reach the cloud's own services without leaving the network.
        peers: networks that must stay reachable, so ``cidr`` may not overlap them.
        flow_log_retention_days: how long accepted and rejected connections stay on record, where that differs
            from ``logs.retention_days``.
        s3_buckets: buckets of your own, or public ones, that the network's way to S3 lets through beside the
            stack's and those of AWS's services; ``*`` stands for any letters (AWS).
    """

    zones: Annotated[tuple[str, ...], Field(min_length=1, max_length=8)]
    cidr: Network | None = None
    existing: ExistingNetwork | None = None
    nat: Nat = Nat.ONE
    interface_endpoints: Switch = False
    peers: tuple[Network, ...] = ()
    flow_log_retention_days: RetentionDays | None = None
    s3_buckets: tuple[BucketPattern, ...] = ()
    slots: dict[str, Annotated[int, Field(ge=0, le=7), NUMBER]] | None = None

    @property
    def own_cidr(self) -> IPv4Network:
        """The network that the stack makes.

        Raises:
            ValueError: it makes none: ``existing`` names one.
        """
        if self.cidr is None:
            raise ValueError("network.existing names a VPC: the stack has no network of its own")
        return self.cidr

    @property
    def reaches_internet(self) -> bool:
        """Whether instances get out of the network."""
        return self.nat is not Nat.NONE if self.existing is None else self.existing.internet

    @property
    def slot_of(self) -> dict[str, int]:
        """Zone -> its slot, for the zones in use."""
        if self.slots is None:
            return {zone: index for index, zone in enumerate(self.zones)}
        return {zone: self.slots[zone] for zone in self.zones}

    @property
    def home_zone(self) -> str:
        """Where what lies in one zone alone stands (a file system, the only NAT): that of the lowest slot.

        Not the preferred one: a change of preference must not move data.
        """
        return min(self.zones, key=lambda zone: self.slot_of[zone])


@dataclass(frozen=True, config=EXACT)
class AccountSettings:
    """A user with an account of that name on every instance.

    Attributes:
        uid: the account's number, 2000 to 29999; for good, since files on the shared homes belong to it.
        keys: public SSH keys, as in ``authorized_keys`` and without options.
        team: a group that the account is in, with the same number on every instance.
        admin: may become root by ``sudo``, without a password.
    """

    uid: Annotated[int, Field(ge=2000, le=29_999), NUMBER]
    keys: Annotated[tuple[PublicKey, ...], Field(max_length=20)] = ()
    team: AccountName | None = None
    admin: Switch = False


class LoginName(StrEnum):
    """Which attribute of IAM Identity Center is a member's login name (AWS)."""

    USER_NAME = "user_name"
    NICK_NAME = "nick_name"


@dataclass(frozen=True, config=EXACT)
class DirectoryTeam:
    """A group of the directory, whose members are a team on the instances.

    Attributes:
        group: the group's id in IAM Identity Center (AWS), or the name of a RAM user group (Alibaba Cloud).
        admin: its members may become root by ``sudo``, without a password.
    """

    group: str
    admin: Switch = False


@dataclass(frozen=True, config=EXACT)
class DirectorySettings:
    """Groups whose members have accounts, beside those whom ``access.people`` names.

    A function of the stack reads them each minute. An account's number follows from the member's id in the
    directory and is written down for good; a member of several groups is in the first team by its name.

    Attributes:
        teams: team -> its group.
        keys: login name -> public SSH keys, since no directory holds any.
        identity_store: the identity store's id, such as ``d-1234567890`` (AWS, required there).
        region: of IAM Identity Center, where that is another than the stack's (AWS).
        role: ARN of a role that reads the identity store, where that is another account's (AWS).
        login: which attribute is the login name, and so what the tag ``SSMSessionRunAs`` must say (AWS).
    """

    teams: Annotated[dict[AccountName, DirectoryTeam], Field(min_length=1, max_length=20)]
    keys: dict[AccountName, Annotated[tuple[PublicKey, ...], Field(max_length=20)]] = Field(
        default_factory=dict
    )
    identity_store: str | None = None
    region: str | None = None
    role: str | None = None
    login: LoginName = LoginName.USER_NAME


@dataclass(frozen=True, config=EXACT)
class AccessSettings:
    """Who may log in. Nobody by SSH unless named here: Session Manager needs no open port.

    Attributes:
        ssh_from: name of a site -> its network; private, or public and no wider than /20.
        people: login name -> account. Instances make them at boot and look for changes every three minutes;
            who is no longer named is locked. On AWS sessions then open as the account that the caller's tag
            ``SSMSessionRunAs`` names.
        directory: groups of IAM Identity Center (AWS) or of RAM (Alibaba Cloud), whose members have accounts
            too.
    """

    ssh_from: dict[str, Network] = Field(default_factory=dict)
    people: Annotated[dict[AccountName, AccountSettings], Field(max_length=1000)] = Field(
        default_factory=dict
    )
    directory: DirectorySettings | None = None

    @property
    def accounts(self) -> bool:
        """Whether instances have accounts of users."""
        return bool(self.people) or self.directory is not None


class Redundancy(StrEnum):
    """Where OSS keeps copies: in one zone (LRS) or in several of the region (ZRS).

    Part of a bucket from its birth: to change it later is to make a new bucket
    (www.alibabacloud.com/help/en/oss/user-guide/storage-redundancy).
    """

    LRS = "LRS"
    ZRS = "ZRS"


@dataclass(frozen=True, config=EXACT)
class ExistingBucket:
    """What instances may do in a bucket of somebody else's.

    Attributes:
        write: instances of every pool may write and delete objects; otherwise they read.
        key: ARN of the KMS key that encrypts it, which instances may then use through S3 or OSS; null where
            the cloud's own key does.
    """

    write: Switch = False
    key: str | None = None


@dataclass(frozen=True, config=EXACT)
class ExistingFileSystem:
    """A file system of somebody else's, in the VPC that ``network.existing`` names.

    Attributes:
        id: the file system, encrypted where its kind can be.
        mount_name: what FSx for Lustre calls it to those who mount it (scratch on AWS, and required there).
    """

    id: str
    mount_name: str | None = None


@dataclass(frozen=True, config=EXACT)
class ExistingStorage:
    """Storage that somebody else runs: the stack lets its instances in, and changes and deletes nothing.

    What a bucket's policy refuses, plain HTTP say, is for its owner to decide.

    Attributes:
        buckets: name -> what instances may do there.
        home: EFS (AWS) or NAS (Alibaba Cloud) that holds the homes, in place of ``storage.home``.
        scratch: FSx for Lustre (AWS) or CPFS (Alibaba Cloud), in place of ``storage.scratch_gib``.
    """

    buckets: Annotated[dict[BucketName, ExistingBucket], Field(max_length=10)] = Field(default_factory=dict)
    home: ExistingFileSystem | None = None
    scratch: ExistingFileSystem | None = None


@dataclass(frozen=True, config=EXACT)
class StorageSettings:
    """Buckets, homes and scratch.

    Attributes:
        key_rotation_days: how often the stack's key rotates; exactly 90 on AWS, 7 to 90 on Alibaba Cloud.
        kms_instance_id: the KMS instance that holds the stack's key (Alibaba Cloud, where a key outside of
            one rotates yearly at the soonest).
        home: a shared, encrypted NFS home for every pool.
        home_gib: its size on Alibaba Cloud; on AWS it grows by itself.
        scratch_gib: size of a shared Lustre (AWS) or CPFS (Alibaba Cloud) file system; 0 for none.
        old_versions_days: how long a bucket keeps what was overwritten or deleted.
        redundancy: of the buckets (Alibaba Cloud), ``LRS`` where left out; to be named in a protected stack,
            since a later change would make new buckets.
        cached_buckets: buckets whose objects lie below ``/scratch/shared/BUCKET`` too, of the Lustre of
            ``scratch_gib``: what is read first is kept there, nothing is written back. ``data`` for the
            stack's own, or names of ``existing.buckets`` (AWS).
        existing: buckets of somebody else's that instances use too, and file systems in place of its own.
    """

    key_rotation_days: Annotated[int, Field(ge=7, le=90), NUMBER] = 90
    kms_instance_id: str | None = None
    home: Switch = False
    home_gib: Annotated[int, Field(ge=100, le=LARGEST), NUMBER] = 100
    scratch_gib: Count = 0
    old_versions_days: Positive = 30
    redundancy: Redundancy | None = None
    cached_buckets: Annotated[tuple[BucketName, ...], Field(max_length=8)] = ()
    existing: ExistingStorage = ExistingStorage()


@dataclass(frozen=True, config=EXACT)
class Size:
    """Instances of a pool: never fewer than ``min``, at first ``desired``, never more than ``max``.

    A pool with a group for each zone has ``max`` as the limit of each; the mover never passes it in all of
    them together. The worst month counts it in each: an operator can still raise a group by hand.

    Attributes:
        min: the group's lower limit.
        desired: how many start with the pool; later it rises by the mover and falls by the sweep alone.
        max: the upper limit, of each group.
    """

    min: Instances = 0
    desired: Instances = 0
    max: SomeInstances = 1


@dataclass(frozen=True, config=EXACT)
class QuietHours:
    """A daily span in the reaper's time zone during which nothing is terminated; may pass midnight.

    Attributes:
        start, end: times of the day, ``"22:00"``; in quotes, or YAML may read a number.
    """

    start: TimeOfDay
    end: TimeOfDay


@dataclass(frozen=True, config=EXACT)
class IdleLimits:
    """Means of a minute from which on an instance counts as active; their shares are added up.

    Attributes:
        cpu_cores: CPU time over real time; 0.1 is 6 CPU seconds a minute.
        disk_kib_per_s: read from and written to its disks.
        network_kib_per_s: received and sent.
    """

    cpu_cores: Annotated[float, Field(ge=0.01, le=64), NUMBER] = 0.1
    disk_kib_per_s: Annotated[float, Field(ge=1, le=1_048_576), NUMBER] = 100
    network_kib_per_s: Annotated[float, Field(ge=1, le=1_048_576), NUMBER] = 64


@dataclass(frozen=True, config=EXACT)
class Idle:
    """When an instance of the pool counts as forgotten, and what happens then.

    What counts as activity (``watch``, ``limits``, ``command``) reaches running instances within ten minutes.

    Attributes:
        after_hours: idle time before an instance is marked; 14 days at most, heartbeats are kept no longer.
        grace_minutes: time between the mark, which notifies the owner, and the action; a week at most.
        action: stop (keeps the disk, and only that) or terminate.
        min_uptime_minutes: a younger instance is left alone.
        coverage_percent: share of the window's heartbeats without which nothing is decided.
        terminate_stopped_after_days: second stage after a stop; null for never.
        quiet_hours: daily spans without any action.
        quiet_weekends: no action from Saturday 00:00 to Monday 00:00.
        watch: names of programs that are work while they run, beside those that the agent knows.
        limits: rates that count as activity.
        command: absolute path and arguments of a program on the image that is run each minute, by an account
            without rights: exit code 0 says busy, 1 says not busy, anything else not known. Only root may be
            able to change it.
        command_timeout_s: the program is killed after so many seconds, and nothing is known then.
    """

    after_hours: Annotated[float, Field(ge=0.05, le=336), NUMBER] = 24
    grace_minutes: Annotated[int, Field(ge=0, le=10_080), NUMBER] = 60
    action: IdleAction = IdleAction.TERMINATE
    min_uptime_minutes: Annotated[int, Field(ge=0, le=20_160), NUMBER] = 60
    coverage_percent: Percent = 90
    terminate_stopped_after_days: Days | None = None
    quiet_hours: tuple[QuietHours, ...] = ()
    quiet_weekends: Switch = False
    watch: tuple[ProgramName, ...] = ()
    limits: IdleLimits = IdleLimits()
    command: tuple[Argument, ...] = ()
    command_timeout_s: Annotated[int, Field(ge=1, le=20), NUMBER] = 5


@dataclass(frozen=True, config=EXACT)
class Pool:
    """A set of like instances that is bought, sized and reaped together.

    Attributes:
        name: lower case letters, digits and dashes.
        types: instance types in order of preference; one only where ``efa`` is on.
        size: how many instances.
        market: how they are bought.
        reservation_id: the reservation or capacity block to start in: its id, or on AWS the ARN of a resource
            group that holds several reservations.
        purpose: who uses the pool.
        zones: a part of ``network.zones``; all of them when empty.
        groups: one scaling group for all zones or one for each; by default per zone where ``efa`` is on.
        efa: Elastic Fabric Adapter on every network card (AWS).
        erdma: elastic RDMA interfaces (Alibaba Cloud).
        gpu_memory_gib: what the work needs of each GPU; a type with less is refused. Null for no such need.
        mig_profile: cut each GPU into instances of this profile at boot, say ``1g.10gb``; null: whole ones.
        on_demand_base: instances of a spot pool that are bought on demand first.
        on_demand_fallback: where no spot instance is to be had, a spot pool buys on demand, at that price.
        spot_price_limit: most to pay for a spot instance and hour, in the currency of the account (Alibaba
            Cloud); null for whatever the market asks, which never passes the on-demand price.
        volume_gib: size of the encrypted root volume.
        scratch_gib: size of an encrypted disk for /scratch (Alibaba Cloud, whose types have no local disks);
            0 for none.
        containers: allow containers to reach the metadata service (one network hop more).
        scaling: scale out under load, ask the sweep to scale in; by default off for training.
        spare: instances kept running for whoever takes one next (``gpu-fleet take``).
        idle: when an instance counts as forgotten.
        max_lifetime_hours: age at which the sweep is asked to replace an instance; at least 24.
        owner: who answers for the pool; the stack's owner when empty.
    """

    name: PoolName
    types: Annotated[tuple[str, ...], Field(min_length=1)]
    size: Size = Size()
    market: Market = Market.ON_DEMAND
    reservation_id: str | None = None
    purpose: Purpose = Purpose.INTERACTIVE
    zones: tuple[str, ...] = ()
    groups: Grouping | None = None
    efa: Switch = False
    erdma: Switch = False
    gpu_memory_gib: Positive | None = None
    mig_profile: str | None = None
    on_demand_base: Count = 0
    on_demand_fallback: Switch = False
    spot_price_limit: PositiveDecimal | None = None
    volume_gib: Positive = 200
    scratch_gib: Count = 0
    containers: Switch = False
    scaling: Switch | None = None
    spare: Instances = 0
    idle: Idle = Idle()
    max_lifetime_hours: Annotated[int, Field(ge=24, le=MOST_HOURS), NUMBER] = 168
    owner: PoolOwner = ""

    @property
    def reserved_by_group(self) -> bool:
        """Whether ``reservation_id`` names a resource group of reservations."""
        return self.reservation_id is not None and self.reservation_id.startswith("arn:")

    @property
    def scales(self) -> bool:
        """Whether load changes the pool's size."""
        return self.purpose is not Purpose.TRAINING if self.scaling is None else self.scaling

    @property
    def rebalances(self) -> bool:
        """Whether a spot instance may be replaced before its market asks for it, on a recommendation (AWS).

        Of serving pools alone: jobs of users and training would end for a mere risk. And not of EFA
        pools, whose instances stand close together, nor of a fixed size (``size.min`` = ``size.max``), where
        there is no room for one instance more.
        """
        grows = self.size.min < self.size.max
        return self.market is Market.SPOT and self.purpose is Purpose.SERVING and not self.efa and grows

    @property
    def grouping(self) -> Grouping:
        """The grouping in force."""
        return self.groups or (Grouping.PER_ZONE if self.efa else Grouping.SINGLE)


@dataclass(frozen=True, config=EXACT)
class Threshold:
    """A share of the budget that notifies when it is passed.

    Attributes:
        percent: of ``budget.monthly``.
        kind: of what is spent, or of the month's forecast.
    """

    percent: Positive
    kind: ThresholdKind = ThresholdKind.ACTUAL


DEFAULT_THRESHOLDS = (
    Threshold(80, ThresholdKind.ACTUAL),
    Threshold(100, ThresholdKind.FORECAST),
    Threshold(100, ThresholdKind.ACTUAL),
)


@dataclass(frozen=True, config=EXACT)
class BudgetSettings:
    """What a month may cost, and who hears of it.

    Attributes:
        monthly: amount per calendar month.
        currency: ``USD`` on AWS, ``CNY`` or ``USD`` on Alibaba Cloud.
        cny_per_usd: the rate to compare prices in one currency with a budget in the other.
        scope: what is counted.
        recipients: e-mail addresses.
        thresholds: in rising order for each kind.
        assume: what to count where no list has a price: instance type -> price of an hour on demand, or the
            name of a price in ``stacks/catalog/prices.toml``, such as ``disk`` -> price of its unit; in
            ``currency``.
        allow_overcommit: build the stack although its worst month would cost more than ``monthly``.
        on_exceeded: only notify, or also keep training pools from launching.
    """

    monthly: Positive = 5000
    currency: Currency = "USD"
    cny_per_usd: PositiveDecimal | None = None
    scope: BudgetScope = BudgetScope.ACCOUNT
    recipients: tuple[Address, ...] = ()
    thresholds: tuple[Threshold, ...] = DEFAULT_THRESHOLDS
    assume: dict[str, AssumedPrice] = Field(default_factory=dict)
    allow_overcommit: Switch = False
    on_exceeded: OnExceeded = OnExceeded.NOTIFY


@dataclass(frozen=True, config=EXACT)
class LeftoversSettings:
    """Unattached volumes, unassociated addresses, long-stopped instances: listed, or also removed.

    Attributes:
        older_than_days: younger ones are passed over.
        remove: remove them, each only with a snapshot made since.
    """

    older_than_days: Days = 14
    remove: Switch = False


@dataclass(frozen=True, config=EXACT)
class ReaperSettings:
    """The scheduled sweep.

    Attributes:
        every_minutes: time between sweeps; 10 at most, since each of them meters the spend too, and an alarm
            on it is to come within 15 minutes.
        dry_run: decide, report and publish, but touch nothing.
        max_actions: instances terminated by one sweep, at most.
        max_percent: the same as a share of the fleet.
        time_zone: IANA name for quiet hours and weekends.
        leftovers: what to do with storage and addresses that nobody uses.
        watch_days: days from the first sweep in which it only reports what it would have stopped or
            terminated; 0 to act at once.
    """

    every_minutes: Annotated[int, Field(ge=5, le=10), NUMBER] = 10
    dry_run: Switch = False
    max_actions: SomeInstances = 10
    max_percent: Percent = 25
    time_zone: str = "UTC"
    leftovers: LeftoversSettings = LeftoversSettings()
    watch_days: Annotated[int, Field(ge=0, le=90), NUMBER] = 0


@dataclass(frozen=True, config=EXACT)
class LogSettings:
    """What the stack writes down of itself.

    Attributes:
        retention_days: how long every log of the stack is kept: connections of its network, runs of the sweep
            and of the mover, logs of instances, requests to its buckets.
        instances: send what boot check, agent, trainers, runs and the queue say on each instance, and the
            kernel's errors of GPUs, to CloudWatch Logs or Simple Log Service; without it that is on the
            instance alone.
        bucket_access: write every request to the stack's buckets down, in a bucket of its own.
        data_events: CloudTrail delivers every call for an object of the stack's buckets there too, with who
            made it, complete and signed; paid for by the event (AWS, with ``bucket_access``).
    """

    retention_days: RetentionDays = 90
    instances: Switch = True
    bucket_access: Switch = False
    data_events: Switch = False


@dataclass(frozen=True, config=EXACT)
class TakeSettings:
    """Who may ask for instances by ``gpu-fleet take``, and for how many.

    Attributes:
        max_per_person: instances that one user may have taken at once, in all pools; 0 for none.
    """

    max_per_person: Instances = 4


@dataclass(frozen=True, config=EXACT)
class TeamSettings:
    """What a team of ``access.people`` or ``access.directory`` gets of the queue.

    Attributes:
        share: how much it may use beside the other teams, which have 1 each unless named: of two jobs that
            wait, the one goes first whose team has used less of its share.
        max_gpus: GPUs that its jobs may have at once, in all pools; a job beyond them waits. Null for all.
    """

    share: Annotated[int, Field(gt=0, le=1000), NUMBER] = 1
    max_gpus: Annotated[int, Field(gt=0, le=MOST_INSTANCES), NUMBER] | None = None


@dataclass(frozen=True, config=EXACT)
class Webhook:
    """A team's room that hears of every instance about to be terminated.

    Attributes:
        kind: ``slack``, ``teams`` (a workflow's) or ``dingtalk`` (a robot with the keyword gpu-fleet).
        secret: name of the secret that holds its address: in Secrets Manager on AWS, in KMS on Alibaba Cloud.
    """

    kind: WebhookKind
    secret: SecretName


@dataclass(frozen=True, config=EXACT)
class NotifySettings:
    """Who is notified, before the grace period of an idle instance begins, beside the budget's recipients.

    Attributes:
        users: login name on the instances, or a pool's owner -> e-mail address. Those seen on an instance
            are notified, and its owner.
        sender: address that mail is sent from, verified in SES or DirectMail; on AWS null lets users
            subscribe to the stack's topic instead, which each confirms once.
        webhooks: rooms that hear every notice.
    """

    users: dict[UserName, Address] = Field(default_factory=dict)
    sender: Address | None = None
    webhooks: Annotated[tuple[Webhook, ...], Field(max_length=10)] = ()

    @property
    def anybody(self) -> bool:
        """Whether anybody is named beside the budget's recipients."""
        return bool(self.users or self.webhooks)


@dataclass(frozen=True, config=EXACT)
class ImageSettings:
    """The image every instance of the stack boots; exactly one of ``id`` and ``parameter``.

    Where ``mode`` is ``baked``, ``base_id`` is set and ``bundled`` is not, those two name what instances
    boot, and bootstrap, until the stack's first build has ended; from then on they boot what was built.

    Attributes:
        id: a fixed image id.
        parameter: an SSM parameter that holds the id (AWS); read anew at every launch. A build of the stack
            writes ``/imagebuilder/gpu-fleet-<stack>/ami``.
        mode: where agent, gate and trainer come from: ``bootstrap``, ``baked`` or ``none``.
        bundled: the image that ``id`` or ``parameter`` names comes from this project's recipe, whose open
            kernel modules need Turing or newer.
        size_gib: its root disk; no pool's volume may be smaller.
        base_id: the Ubuntu 24.04 that a build starts from: an image id, on AWS also ``ssm:/parameter``; null
            for no build pipeline.
        payload: the recipe that it runs, by its path from the top of the checkout: a tarball that
            ``gpu-fleet image payload`` wrote; null for the checkout's own.
        canary: whether a build is tried on a GPU of the stack before it is promoted (AWS): the gate, and an
            all-reduce over all GPUs.
        scan: whether Amazon Inspector's findings are kept with each build (AWS): a service of its own price,
            which the account must have activated for EC2.
        disk: a disk baked here (qcow2), by its path, that is imported as an image (Alibaba Cloud).
    """

    id: str | None = None
    parameter: str | None = None
    mode: ImageMode = ImageMode.BOOTSTRAP
    bundled: Switch = False
    size_gib: Positive = 100
    base_id: str | None = None
    payload: str | None = None
    canary: Switch = True
    scan: Switch = False
    disk: str | None = None

    @property
    def managed(self) -> bool:
        """Whether instances run the agent, and so may be reaped."""
        return self.mode is not ImageMode.NONE

    @property
    def built(self) -> bool:
        """Whether the stack has a pipeline that builds images."""
        return self.base_id is not None

    @property
    def follows_builds(self) -> bool:
        """Whether instances boot the stack's newest build, and until there is one bootstrap another image."""
        return self.mode is ImageMode.BAKED and self.built and not self.bundled

    @property
    def bootstraps(self) -> bool:
        """Whether instances may boot an image that lacks agent, gate and trainer."""
        return self.mode is ImageMode.BOOTSTRAP or self.follows_builds

    @staticmethod
    def built_parameter(stack: str) -> str:
        """The SSM parameter that holds the newest image built; Image Builder's own role may write these."""
        return f"/imagebuilder/gpu-fleet-{stack}/ami"


@dataclass(frozen=True, config=EXACT)
class AwsSettings:
    """What is of AWS alone.

    Attributes:
        permissions_boundary: ARN of the policy that bounds every role of the stack; null for none. Roles that
            services of AWS make for themselves take none.
    """

    permissions_boundary: PolicyArn | None = None


@dataclass(frozen=True, config=EXACT)
class Stack:
    """One environment.

    Attributes:
        name: the stack's name, from Pulumi.
        cloud: ``aws`` or ``alicloud``.
        region: where everything is; no resource lands elsewhere.
        account_id: the account it belongs to; the provider refuses any other.
        owner: who answers for the stack.
        protected: buckets, keys and file systems refuse deletion.
        endpoint_url: an emulator (a moto server, say) instead of the cloud, used with throw-away credentials.
        queue: ``slurm`` for a queue over the instances of all pools, or ``none``.
        teams: team of ``access.people`` or ``access.directory`` -> its share of the queue, and its limit;
            ``no-team`` for those who are in none.
        tags: the organisation's own tags, key -> value, on every resource that takes any, instances too.
        aws: what is of AWS alone.
    """

    name: str
    cloud: Cloud
    region: str
    account_id: str
    network: NetworkSettings
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    owner: Owner = "platform"
    protected: TextSwitch = False
    endpoint_url: OptionalUrl = None
    access: AccessSettings = AccessSettings()
    storage: StorageSettings = StorageSettings()
    budget: BudgetSettings = BudgetSettings()
    reaper: ReaperSettings = ReaperSettings()
    notify: NotifySettings = NotifySettings()
    logs: LogSettings = LogSettings()
    take: TakeSettings = TakeSettings()
    image: ImageSettings = ImageSettings()
    queue: Queue = Queue.NONE
    teams: Annotated[dict[AccountName, TeamSettings], Field(max_length=1000)] = Field(default_factory=dict)
    tags: Annotated[dict[TagKey, Owner], Field(max_length=MOST_TAGS)] = Field(default_factory=dict)
    aws: AwsSettings = AwsSettings()

    @property
    def queued(self) -> bool:
        """Whether a queue starts jobs on the stack's instances."""
        return self.queue is not Queue.NONE

    @property
    def emulated(self) -> bool:
        """Whether an emulator stands for the cloud; what moto lacks is then left out."""
        return self.endpoint_url is not None

    @property
    def flow_log_days(self) -> int:
        """How long the network's connections stay on record."""
        return self.network.flow_log_retention_days or self.logs.retention_days

    def bucket_name(self, kind: str) -> str:
        """Of a bucket: unique in the world by the account's id, and known before anything exists."""
        return naming.prefixed(self.name, kind, self.account_id)

    @property
    def instance_log(self) -> str:
        """Where the logs of instances go: a log group, or ``PROJECT/STORE``. Known before it exists.

        Empty where they go nowhere.
        """
        if not self.logs.instances:
            return ""
        if self.cloud is Cloud.AWS:
            return f"/{naming.PROJECT}/{self.name}/{_INSTANCES}"
        return f"{naming.prefixed(self.name, _INSTANCES, self.account_id)}/{_INSTANCES}"

    def zones_of(self, pool: Pool) -> tuple[str, ...]:
        """The zones a pool uses, in the network's order of preference."""
        return tuple(zone for zone in self.network.zones if not pool.zones or zone in pool.zones)
