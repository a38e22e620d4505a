"""Keys of a stack file as frozen dataclasses; their docstrings are the reference of the YAML keys.

pydantic checks types, ranges and unknown keys (see ``reader``); ``rules`` checks rules between keys.
Together they report every problem of a file at once.
"""

import dataclasses
import re
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from ipaddress import IPv4Network
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.dataclasses import dataclass
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.catalog.numbers import AMOUNT, NUMBER, Switch, TextSwitch
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.releases import version

EXACT = ConfigDict(extra="forbid")


@dataclasses.dataclass(frozen=True)
class Matching:
    """A check of text, with an error that says what is allowed; editors get the pattern.

    Attributes:
        pattern: of the whole text.
        allowed: the error for other text.
    """

    pattern: str
    allowed: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        any_script = self.pattern.replace(r"\w", r"\w\u0080-\uffff")  # an editor's \w covers ASCII only
        return handler(schema) | {"pattern": f"^(?:{any_script})$"}

    def checked(self, text: str) -> str:
        """Return the text.

        Raises:
            ValueError: the message says what is allowed.
        """
        if not re.fullmatch(self.pattern, text):
            raise ValueError(self.allowed)
        return text


PoolName = Annotated[
    str,
    Matching(naming.NAME_FORM, f"must be {naming.NAME_RULE}"),
]
# Allowed in a tag's value by IAM, Lambda and others, which refuse other text only during the deployment:
# docs.aws.amazon.com/IAM/latest/APIReference/API_Tag.html; Alibaba Cloud takes 128 characters.
OWNER = r"[\w.:/=+@-]([\w .:/=+@-]{0,126}[\w.:/=+@-])?"
OWNER_RULE = (
    "128 letters, digits, spaces and any of _ . : / = + - @, and begin and end with none of the spaces"
)
Owner = Annotated[str, Matching(OWNER, f"must be 1 to {OWNER_RULE}")]
# docs.aws.amazon.com/IAM/latest/APIReference/API_Tag.html, which is the narrowest of AWS's services.
# IAM knows no capitals in keys ("Duplicate tag keys found"), nor does OSS: these are not free in any.
_TAKEN = "|".join(
    "".join(f"[{letter.upper()}{letter}]" if letter.isalpha() else letter for letter in taken)
    for taken in ("aws:", "acs:", "aliyun", "gpu-fleet:", "name$")
)
TagKey = Annotated[
    str,
    Matching(
        rf"(?!{_TAKEN}){OWNER}",
        "must not be Name or begin with aws:, acs:, aliyun or gpu-fleet:, in any capitals, and otherwise be "
        f"1 to {OWNER_RULE}",
    ),
]
PolicyArn = Annotated[
    str,
    Matching(
        r"arn:aws(-us-gov)?:iam::([0-9]{12}|aws):policy/[A-Za-z0-9_+=,.@/-]{1,512}",
        "must be the ARN of a policy, such as arn:aws:iam::123456789012:policy/boundary",
    ),
]
# An object of S3 takes ten, of which two are the stack's own; Alibaba Cloud takes 20, of which seven are.
MOST_TAGS = 8
PoolOwner = Annotated[str, Matching(f"({OWNER})?", f"must be up to {OWNER_RULE}")]
Address = Annotated[str, Matching(r"[^@\s]+@[^@\s]+\.[^@\s]+", "must be an e-mail address")]
UserName = Annotated[
    str,
    Matching(
        r"[\w.:/=+@-]{1,64}( [\w.:/=+@-]{1,64})*", "must be a login name, or the owner of a pool or the stack"
    ),
]
# useradd's own default, without the capitals and dots that confuse some file systems and mail (useradd(8)).
AccountName = Annotated[
    str,
    Matching(r"[a-z][a-z0-9_-]{0,30}", "must be a login name: up to 31 lower case letters, digits, - and _"),
]
# sshd(8), "AUTHORIZED_KEYS FILE FORMAT"; DSA is obsolete, and a rule checks RSA's length.
PublicKey = Annotated[
    str,
    Matching(
        r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)"
        r"|sk-(ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com)"
        r" [A-Za-z0-9+/]{40,}={0,2}( [^\x00-\x1f]{1,128})?",
        "must be one line of a public key file, such as that of ~/.ssh/id_ed25519.pub",
    ),
]
# Allowed by both clouds (API CreateSecret of AWS Secrets Manager and of Alibaba Cloud's KMS).
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
# docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html; OSS allows no dots
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
TimeOfDay = Annotated[
    str, Matching(r"([01][0-9]|2[0-3]):[0-5][0-9]", "must be a time of day from 00:00 to 23:59")
]
# A reservation's end is on the minute; with seconds YAML would make it a date of its own.
MOMENT = "%Y-%m-%dT%H:%MZ"
Moment = Annotated[
    str,
    Matching(
        r"20[0-9][0-9]-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]Z",
        "must be a time in UTC, such as 2027-03-31T11:30Z",
    ),
]
Release = Annotated[str, Matching(version.PATTERN, "must be a release of gpu-fleet, such as 0.2.0")]
Url = Annotated[str, Matching(r"https?://\S+", "must be an http or https URL")]


def _no_number(network: object) -> object:
    """Refuse a number, which ``ipaddress`` would turn into an address near 0.0.0.0."""
    if isinstance(network, int):
        raise ValueError("must be a network, such as 10.20.0.0/16")
    return network


Network = Annotated[IPv4Network, BeforeValidator(_no_number)]


def _given(value: object) -> object:
    """Return None for the empty text, the default in Pulumi.yaml, where a key without one is required."""
    return None if value == "" else value


def _unquoted(release: object) -> object:
    """Refuse a number, which in quotes is no release either."""
    if isinstance(release, int | float):
        raise ValueError('must be a release of gpu-fleet, such as "0.2.0"')
    return release


OptionalUrl = Annotated[Url | None, BeforeValidator(_given)]
OptionalRelease = Annotated[Release | None, BeforeValidator(_given), BeforeValidator(_unquoted)]
# More than any account has of anything; a larger number would make the estimate's sums exceed 28 digits.
LARGEST = 1_000_000_000
# the label of the instances' log in the names of both clouds
_INSTANCES = "instances"
Positive = Annotated[int, Field(gt=0, le=LARGEST), NUMBER]
Count = Annotated[int, Field(ge=0, le=LARGEST), NUMBER]
# The sweep's own limits: a policy beyond them would stop every sweep
# (image/gpu_fleet_image/core/policy.py).
MOST_INSTANCES, MOST_DAYS, MOST_HOURS = 100_000, 3650, 100_000
Instances = Annotated[int, Field(ge=0, le=MOST_INSTANCES), NUMBER]
SomeInstances = Annotated[int, Field(gt=0, le=MOST_INSTANCES), NUMBER]
Days = Annotated[int, Field(gt=0, le=MOST_DAYS), NUMBER]
PositiveDecimal = Annotated[Decimal, Field(gt=0, le=LARGEST, decimal_places=6), AMOUNT]
# More than any hour or GiB costs; less than 0.0001 of any currency is a mistake.
AssumedPrice = Annotated[Decimal, Field(ge=Decimal("0.0001"), le=100_000, decimal_places=6), AMOUNT]
# The largest of gp3 (botocore, ``ec2``, CreateVolume's ``Size``) and of an ESSD.
DiskGib = Annotated[int, Field(gt=0, le=65_536), NUMBER]
Percent = Annotated[int, Field(gt=0, le=100), NUMBER]
# The periods of CloudWatch Logs (API PutRetentionPolicy), up to the limit of Simple Log Service: 3000 days
# (alicloud_log_store, ``retention_period``).
RetentionDays = Annotated[
    Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922],
    NUMBER,
]


class Nat(StrEnum):
    """Route of private subnets to the internet: none, through one gateway, or each through its own.

    ``one`` is cheap and fails with its zone; ``per_zone`` survives the loss of any zone; ``none`` needs
    ``network.interface_endpoints``.
    """

    NONE = "none"
    ONE = "one"
    PER_ZONE = "per_zone"


class Market(StrEnum):
    """Purchase option for capacity, from expensive and permanent to cheap and interruptible.

    ``reservation`` and ``capacity-block`` start instances only inside capacity that is already paid for.
    """

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVATION = "reservation"
    CAPACITY_BLOCK = "capacity-block"


class Purpose(StrEnum):
    """Use of the pool: users at a prompt, a distributed training job, or a service that follows load.

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


class BreakerRelease(StrEnum):
    """Release of instances that the mass-idle breaker holds: after a day, or by an operator who looked.

    ``by-operator-after-update`` waits for an operator where agent or image are new since one looked, and for
    a day elsewhere: a release that is blind finds every instance idle, today and tomorrow.
    """

    AFTER_A_DAY = "after-a-day"
    BY_OPERATOR = "by-operator"
    BY_OPERATOR_AFTER_UPDATE = "by-operator-after-update"


class IdleAction(StrEnum):
    """Action of the sweep on an instance that stayed idle through its grace period."""

    STOP = "stop"
    TERMINATE = "terminate"


class ThresholdKind(StrEnum):
    """Amount that is compared with the budget: the money already spent, or the month's forecast."""

    ACTUAL = "actual"
    FORECAST = "forecast"


class OnExceeded(StrEnum):
    """Action of the sweep once the last thresholds of kind ``actual`` are passed.

    ``notify`` leaves it to users. ``freeze`` limits the training pools to their size when the last but one is
    passed, and lets them start nothing more when the last is passed; no running instance is touched, and
    ``gpu-fleet unfreeze`` or the next month lifts it.
    """

    NOTIFY = "notify"
    FREEZE = "freeze"


class BudgetScope(StrEnum):
    """Costs that are counted: those with the stack's cost allocation tag (must be activated), or all."""

    TAG = "tag"
    ACCOUNT = "account"


class Queue(StrEnum):
    """Start of runs: each user on their own instances, or a queue over all instances.

    ``slurm``: the stack has a controller, and every instance of every pool is a node; waiting jobs make the
    pools grow. It needs shared homes and accounts.
    """

    NONE = "none"
    SLURM = "slurm"


class WebhookKind(StrEnum):
    """Product of the room that a webhook writes to."""

    SLACK = "slack"
    TEAMS = "teams"
    DINGTALK = "dingtalk"


class ImageMode(StrEnum):
    """Source of agent, gate and trainer, from nothing prepared to everything prepared.

    ``bootstrap``: the image is another owner's, with an NVIDIA driver and Python 3.11 or newer; the first
    boot fetches the payload from the stack's bucket. ``baked``: the image comes from this project's recipe
    and holds all three; with ``image.base_id`` it is the newest build, and until there is one, instances
    bootstrap. ``none``: nothing of this project runs; such instances are not tagged ``gpu-fleet:managed``,
    and none is terminated.
    """

    BOOTSTRAP = "bootstrap"
    BAKED = "baked"
    NONE = "none"

    @property
    def in_words(self) -> str:
        """Description for reports of the image that instances boot."""
        return {"bootstrap": "bootstrapped", "none": "nothing of gpu-fleet runs there"}.get(
            self.value, self.value
        )


@dataclass(frozen=True, config=EXACT)
class ExistingNetwork:
    """A VPC of another owner: the stack adds its security groups, and changes and deletes nothing.

    The stack adds interface endpoints only with ``network.interface_endpoints``; the VPC's owner keeps
    routes, NAT, the route to S3 or OSS and flow logs.

    Attributes:
        vpc_id: the VPC.
        subnets: zone -> the private subnet (AWS) or vSwitch (Alibaba Cloud) for instances in it, one for each
            of ``network.zones``.
        internet: whether their routes lead to the internet, through the owner's NAT gateway or proxy; if not,
            ``network.interface_endpoints`` or the owner's own endpoints are needed (AWS; on Alibaba Cloud,
            services answer inside every VPC).
    """

    vpc_id: str
    subnets: dict[str, str]
    internet: Switch = True


@dataclass(frozen=True, config=EXACT)
class NetworkSettings:
    """Private network of a stack: its own, or with ``existing`` another owner's.

    Attributes:
        cidr: an RFC 1918 network from /16 to /23, for the stack's own network.
        zones: availability zones in order of preference.
        slots: zone -> its eighth of ``cidr``, 0 to 7; a zone keeps its slot for good. By default the order of
            ``zones`` numbers them; then you may only add zones at the end. File systems are in the zone of
            the lowest slot.
        existing: a VPC by its id, in place of ``cidr``.
        nat: the route of private subnets to the internet.
        interface_endpoints: reach the cloud's own services without leaving the network.
        peers: networks that must stay reachable, so ``cidr`` may not overlap them.
        flow_log_retention_days: how long accepted and rejected connections are kept, where that differs from
            ``logs.retention_days``.
        s3_buckets: your own or public buckets that the network's S3 endpoint allows beside the stack's and
            those of AWS's services; ``*`` stands for any letters (AWS).
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
        """Network that the stack makes.

        Raises:
            ValueError: it makes none: ``existing`` names one.
        """
        if self.cidr is None:
            raise ValueError("network.existing names a VPC: the stack has no network of its own")
        return self.cidr

    @property
    def reaches_internet(self) -> bool:
        """Return whether instances reach the internet."""
        return self.nat is not Nat.NONE if self.existing is None else self.existing.internet

    @property
    def way_out(self) -> tuple[str, object]:
        """Key that decides whether instances reach the internet, and its value."""
        if self.existing is None:
            return "network.nat", str(self.nat)
        return "network.existing.internet", self.existing.internet

    @property
    def slot_of(self) -> dict[str, int]:
        """Zone -> its slot, for the zones in use."""
        if self.slots is None:
            return {zone: index for index, zone in enumerate(self.zones)}
        return {zone: self.slots[zone] for zone in self.zones}

    @property
    def home_zone(self) -> str:
        """Zone of resources that are in one zone alone (file systems, the only NAT): that of the lowest slot.

        It is not the preferred zone: a change of preference must not move data.
        """
        return min(self.zones, key=lambda zone: self.slot_of[zone])


@dataclass(frozen=True, config=EXACT)
class AccountSettings:
    """A user with an account of that name on every instance.

    Attributes:
        uid: the account's number, 2000 to 29999; it must never change, since it owns files on the shared
            homes.
        keys: public SSH keys, as in ``authorized_keys`` and without options.
        team: a group of the account, with the same number on every instance.
        admin: may become root by ``sudo``, without a password.
    """

    uid: Annotated[int, Field(ge=2000, le=29_999), NUMBER]
    keys: Annotated[tuple[PublicKey, ...], Field(max_length=20)] = ()
    team: AccountName | None = None
    admin: Switch = False


class LoginName(StrEnum):
    """Attribute of IAM Identity Center that is a member's login name (AWS)."""

    USER_NAME = "user_name"
    NICK_NAME = "nick_name"


@dataclass(frozen=True, config=EXACT)
class DirectoryTeam:
    """A group of the directory; its members are a team on the instances.

    Attributes:
        group: the group's id in IAM Identity Center (AWS), or the name of a RAM user group (Alibaba Cloud).
        admin: its members may become root by ``sudo``, without a password.
    """

    group: str
    admin: Switch = False


@dataclass(frozen=True, config=EXACT)
class DirectorySettings:
    """Groups whose members have accounts, beside those in ``access.people``.

    A function of the stack reads the groups each minute. It derives an account's number from the member's id
    in the directory and records it for good. A member of several groups is in the team whose name comes
    first.

    Attributes:
        teams: team -> its group.
        keys: login name -> public SSH keys, since the directory holds none.
        identity_store: the identity store's id, such as ``d-1234567890`` (AWS, required there).
        region: region of IAM Identity Center, if it differs from the stack's (AWS).
        role: ARN of a role that reads the identity store, if that is in another account (AWS).
        login: the attribute that is the login name; the tag ``SSMSessionRunAs`` must have the same value
            (AWS).
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
    """Access for users. SSH is closed unless a network is named: Session Manager needs no open port.

    Attributes:
        ssh_from: name of a site -> its network; private, or public and no wider than /20.
        people: login name -> account. Instances make the accounts at boot and check for changes every three
            minutes; an account that is no longer named is locked. On AWS, sessions then open as the account
            in the caller's tag ``SSMSessionRunAs``.
        directory: groups of IAM Identity Center (AWS) or of RAM (Alibaba Cloud) whose members also have
            accounts.
    """

    ssh_from: dict[str, Network] = Field(default_factory=dict)
    people: Annotated[dict[AccountName, AccountSettings], Field(max_length=1000)] = Field(
        default_factory=dict
    )
    directory: DirectorySettings | None = None

    @property
    def accounts(self) -> bool:
        """Return whether instances have accounts of users."""
        return bool(self.people) or self.directory is not None


class Redundancy(StrEnum):
    """Location of OSS's copies: one zone (LRS) or several of the region (ZRS).

    It cannot change after a bucket is made: a change makes a new bucket
    (www.alibabacloud.com/help/en/oss/user-guide/storage-redundancy).
    """

    LRS = "LRS"
    ZRS = "ZRS"


@dataclass(frozen=True, config=EXACT)
class ExistingBucket:
    """Permissions of instances in another owner's bucket.

    Attributes:
        write: instances of every pool may write and delete objects; otherwise they read.
        key: ARN of the KMS key that encrypts it, which instances may then use through S3 or OSS; null where
            the cloud's own key does.
    """

    write: Switch = False
    key: str | None = None


@dataclass(frozen=True, config=EXACT)
class ExistingFileSystem:
    """A file system of another owner, in the VPC that ``network.existing`` names.

    Attributes:
        id: the file system, encrypted where its kind can be.
        mount_name: the mount name of an FSx for Lustre (scratch on AWS, and required there).
    """

    id: str
    mount_name: str | None = None


@dataclass(frozen=True, config=EXACT)
class ExistingStorage:
    """Storage of another owner: the stack gives its instances access, and changes and deletes nothing.

    The owner's bucket policy decides what is refused, for example plain HTTP.

    Attributes:
        buckets: name -> permissions of instances there.
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
            one rotates at most once a year).
        home: a shared, encrypted NFS home for every pool.
        home_gib: size of the home on Alibaba Cloud; on AWS it grows automatically.
        scratch_gib: size of a shared Lustre (AWS) or CPFS (Alibaba Cloud) file system; 0 for none.
        old_versions_days: how long a bucket keeps overwritten and deleted objects.
        redundancy: copies of the buckets (Alibaba Cloud), ``LRS`` by default; required in a protected stack,
            since a later change would make new buckets.
        cached_buckets: buckets whose objects also appear below ``/scratch/shared/BUCKET``, in the Lustre of
            ``scratch_gib``: it keeps what is read, and writes nothing back. ``data`` for the stack's own
            bucket, or names of ``existing.buckets`` (AWS).
        replica_region: another region of the cloud, to which data and checkpoints are copied as they are
            written, under a key of that region; deletions are not copied. None for no copies.
        replica_kms_instance_id: the KMS instance of ``replica_region`` for the key of the copies (Alibaba
            Cloud).
        existing: buckets of another owner that instances also use, and file systems in place of the stack's.
    """

    key_rotation_days: Annotated[int, Field(ge=7, le=90), NUMBER] = 90
    kms_instance_id: str | None = None
    home: Switch = False
    home_gib: Annotated[int, Field(ge=100, le=LARGEST), NUMBER] = 100
    scratch_gib: Count = 0
    old_versions_days: Positive = 30
    redundancy: Redundancy | None = None
    cached_buckets: Annotated[tuple[BucketName, ...], Field(max_length=8)] = ()
    replica_region: str | None = None
    replica_kms_instance_id: str | None = None
    existing: ExistingStorage = ExistingStorage()


@dataclass(frozen=True, config=EXACT)
class Size:
    """Instances of a pool: never fewer than ``min``, at first ``desired``, never more than ``max``.

    In a pool with a group for each zone, ``max`` limits each group, and the mover never lets all of them
    together pass it. The worst month counts ``max`` in each group, since an operator can raise a group by
    hand.

    ``{min: 0, desired: 0, max: 0}`` drains the pool: nothing starts there any more, and the instances that
    run end as usual, when nobody uses them. The pool can be removed once none is left.

    Attributes:
        min: the group's lower limit.
        desired: instances that start with the pool; later only the mover raises it, only the sweep lowers it.
        max: the upper limit, of each group; 0 drains the pool.
    """

    min: Instances = 0
    desired: Instances = 0
    max: Instances = 1


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
    """One-minute averages from which on an instance counts as active; their shares are added up.

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
    """Idle policy of a pool: when an instance counts as idle, and what happens then.

    The activity keys (``watch``, ``limits``, ``command``) reach running instances within ten minutes.

    Attributes:
        after_hours: idle time before an instance is marked; 14 days at most, since heartbeats are kept no
            longer. In a pool with ``scaling`` one instance at a time is marked after 30 minutes while the
            load is low, and so is one older than ``max_lifetime_hours``.
        grace_minutes: time between the mark, which notifies the owner, and the action; a week at most.
        action: stop (keeps only the root volume) or terminate.
        min_uptime_minutes: a younger instance is left alone.
        coverage_percent: share of the window's heartbeats that a decision needs.
        terminate_stopped_after_days: second stage after a stop; null for never.
        quiet_hours: daily spans without any action.
        quiet_weekends: no action from Saturday 00:00 to Monday 00:00.
        watch: names of programs that count as work while they run, beside those that the agent knows.
        limits: rates that count as activity.
        command: absolute path and arguments of a program on the image that runs each minute, as an account
            without rights: exit code 0 says busy, 1 says not busy, anything else says unknown. Only root may
            be able to change it.
        command_timeout_s: the program is killed after this many seconds, and its answer is unknown.
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
class CapacityReservation:
    """One of a pool's reservations.

    Attributes:
        id: the reservation, capacity block or elasticity assurance.
        zone: its zone, one of the pool's.
        count: instances that it holds, which are paid for, used or not.
        until: its end in UTC, such as ``2027-03-31T11:30Z``, after which it is not paid for; null for none.
    """

    id: str
    zone: str
    count: SomeInstances
    until: Moment | None = None

    @property
    def ends_at(self) -> datetime | None:
        """Its end; None for none.

        Raises:
            ValueError: there is no such day.
        """
        return None if self.until is None else datetime.strptime(self.until, MOMENT).replace(tzinfo=UTC)


@dataclass(frozen=True, config=EXACT)
class Pool:
    """A set of instances of one kind that is bought, sized and reaped together.

    Attributes:
        name: lower case letters, digits and dashes.
        types: instance types in order of preference; one only where ``efa`` is on.
        size: how many instances.
        market: how they are bought.
        reservation_id: the reservation or capacity block to start in: its id, or on AWS the ARN of a resource
            group that holds several reservations. ``size.max`` of its instances are paid for, used or not.
        reservations: several reservations, in order of preference, in place of ``reservation_id``; each has a
            scaling group of its own, and together they hold ``size.max`` instances at least.
        purpose: who uses the pool.
        zones: a part of ``network.zones``; all of them when empty.
        groups: one scaling group for all zones or one for each; by default per zone where ``efa`` is on.
        efa: Elastic Fabric Adapter on every network card (AWS).
        erdma: elastic RDMA interfaces (Alibaba Cloud).
        gpu_memory_gib: memory that the work needs of each GPU; a type with less is refused. Null for no such
            need.
        mig_profile: divide each GPU into instances of this profile at boot, say ``1g.10gb``; null: whole
            GPUs.
        on_demand_base: instances of a spot pool that are bought on demand first.
        on_demand_fallback: where no spot instance is available, a spot pool buys on demand, at that price.
        spot_price_limit: most to pay for a spot instance and hour, in the currency of the account (Alibaba
            Cloud); null for whatever the market asks, which never passes the on-demand price.
        volume_gib: size of the encrypted root volume.
        scratch_gib: size of an encrypted disk for /scratch (Alibaba Cloud, whose types have no local disks);
            0 for none.
        scaling: scale out under load; under low load the sweep marks one instance at a time that was idle for
            30 minutes. By default off for training.
        spare: instances kept running for the next user of ``gpu-fleet take``.
        idle: when an instance counts as idle, and what happens then.
        max_lifetime_hours: age from which 30 idle minutes are enough for the mark; at least 24.
        owner: the user or team responsible for the pool; the stack's owner when empty.
    """

    name: PoolName
    types: Annotated[tuple[str, ...], Field(min_length=1)]
    size: Size = Size()
    market: Market = Market.ON_DEMAND
    reservation_id: str | None = None
    reservations: Annotated[tuple[CapacityReservation, ...], Field(max_length=20)] = ()
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
    volume_gib: DiskGib = 200
    scratch_gib: Count = 0
    scaling: Switch | None = None
    spare: Instances = 0
    idle: Idle = Idle()
    max_lifetime_hours: Annotated[int, Field(ge=24, le=MOST_HOURS), NUMBER] = 168
    owner: PoolOwner = ""

    @property
    def reserves(self) -> bool:
        """Return whether instances start only inside a reservation."""
        return self.reservation_id is not None or bool(self.reservations)

    @property
    def reserved_by_group(self) -> bool:
        """Return whether ``reservation_id`` names a resource group of reservations."""
        return self.reservation_id is not None and self.reservation_id.startswith("arn:")

    @property
    def drains(self) -> bool:
        """Return whether the pool takes no new instances."""
        return self.size.max == 0

    @property
    def scales(self) -> bool:
        """Return whether load changes the pool's size."""
        return self.purpose is not Purpose.TRAINING if self.scaling is None else self.scaling

    @property
    def rebalances(self) -> bool:
        """Return whether a rebalance recommendation replaces a spot instance before its interruption (AWS).

        Only in serving pools: users' and training jobs would end for a mere risk. Not in EFA pools, whose
        instances are placed close together, nor in pools of fixed size (``size.min`` = ``size.max``), which
        have no room for one more instance.
        """
        grows = self.size.min < self.size.max
        return self.market is Market.SPOT and self.purpose is Purpose.SERVING and not self.efa and grows

    @property
    def grouping(self) -> Grouping:
        """The grouping in force."""
        return self.groups or (Grouping.PER_ZONE if self.efa else Grouping.SINGLE)


@dataclass(frozen=True, config=EXACT)
class Threshold:
    """A share of the budget that sends a notification when it is passed.

    Attributes:
        percent: share of ``budget.monthly``.
        kind: compare the money spent, or the month's forecast.
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
    """Budget of a month, and the recipients of its alarms.

    Attributes:
        monthly: amount per calendar month.
        currency: ``USD`` on AWS, ``CNY`` or ``USD`` on Alibaba Cloud.
        cny_per_usd: the rate to compare prices in one currency with a budget in the other.
        scope: costs that are counted.
        recipients: e-mail addresses.
        thresholds: at least one; in rising order for each kind.
        assume: price to count where no list has one: instance type -> price of an hour on demand, or the
            name of a price in ``stacks/gpu_fleet_stacks/catalog/prices.toml``, such as ``disk`` -> price of
            its unit; in ``currency``.
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
        older_than_days: younger ones are skipped.
        remove: remove them, each only with a snapshot made since.
    """

    older_than_days: Days = 14
    remove: Switch = False


@dataclass(frozen=True, config=EXACT)
class ReaperSettings:
    """The scheduled sweep.

    Attributes:
        every_minutes: time between sweeps; 10 at most, since each sweep also meters the cost, and its alarm
            must arrive within 15 minutes.
        dry_run: decide, report and publish, but touch nothing.
        max_actions: instances terminated by one sweep, at most.
        max_percent: the same limit as a share of the fleet.
        time_zone: IANA name for quiet hours and weekends.
        leftovers: what to do with unused storage and addresses.
        watch_days: days from the first sweep in which it only reports what it would have stopped or
            terminated; 0 to act at once.
        breaker_release: when instances that the mass-idle breaker held may be terminated.
    """

    every_minutes: Annotated[int, Field(ge=5, le=10), NUMBER] = 10
    dry_run: Switch = False
    max_actions: SomeInstances = 10
    max_percent: Percent = 25
    time_zone: str = "UTC"
    leftovers: LeftoversSettings = LeftoversSettings()
    watch_days: Annotated[int, Field(ge=0, le=90), NUMBER] = 0
    breaker_release: BreakerRelease = BreakerRelease.BY_OPERATOR_AFTER_UPDATE


@dataclass(frozen=True, config=EXACT)
class LogSettings:
    """Logs of the stack.

    Attributes:
        retention_days: how long every log of the stack is kept: connections of its network, runs of the sweep
            and of the mover, logs of instances, requests to its buckets.
        instances: send the logs of boot check, agent, trainers, runs and the queue on each instance, and the
            kernel's errors of GPUs, to CloudWatch Logs or Simple Log Service; without it they stay on the
            instance.
        bucket_access: log every request to the stack's buckets, in a separate bucket.
        data_events: CloudTrail also delivers every call for an object of the stack's buckets there, with its
            caller, complete and signed; paid by the event (AWS, with ``bucket_access``).
    """

    retention_days: RetentionDays = 90
    instances: Switch = True
    bucket_access: Switch = False
    data_events: Switch = False


@dataclass(frozen=True, config=EXACT)
class TakeSettings:
    """Limit of ``gpu-fleet take``, with which users ask for instances.

    Attributes:
        max_per_person: instances that one user may have taken at once, in all pools; 0 for none.
    """

    max_per_person: Instances = 4


@dataclass(frozen=True, config=EXACT)
class TeamSettings:
    """Share of the queue, and budget, of a team of ``access.people`` or ``access.directory``.

    Attributes:
        share: how much the team may use in relation to the others, whose default is 1: of two waiting jobs,
            the one starts first whose team has used less of its share.
        max_gpus: GPUs that its jobs may have at once, in all pools; further jobs wait. Null for all.
        monthly: its budget of a calendar month in ``budget.currency``, for its members' instances; each
            threshold of kind ``actual`` that they pass is notified. Null for none.
        on_exceeded: only notify, or also freeze the team: past the last such threshold it takes no instance
            and starts no job of the queue. It may go on with what it holds, and so may other teams.
    """

    share: Annotated[int, Field(gt=0, le=1000), NUMBER] = 1
    max_gpus: Annotated[int, Field(gt=0, le=MOST_INSTANCES), NUMBER] | None = None
    monthly: Positive | None = None
    on_exceeded: OnExceeded = OnExceeded.NOTIFY


@dataclass(frozen=True, config=EXACT)
class Webhook:
    """A team's room that is notified of every instance about to be terminated.

    Attributes:
        kind: ``slack``, ``teams`` (a workflow's) or ``dingtalk`` (a robot with the keyword gpu-fleet).
        secret: name of the secret that holds its address: in Secrets Manager on AWS, in KMS on Alibaba Cloud.
    """

    kind: WebhookKind
    secret: SecretName


@dataclass(frozen=True, config=EXACT)
class NotifySettings:
    """Recipients of the notice before an idle instance's grace period, beside the budget's recipients.

    Attributes:
        users: login name on the instances, or a pool's owner -> e-mail address. The instance's owner and the
            users seen on it are notified.
        sender: sender address of the mail, verified in SES or DirectMail; on AWS null lets users subscribe to
            the stack's topic instead, which each confirms once.
        webhooks: rooms that get every notice.
    """

    users: dict[UserName, Address] = Field(default_factory=dict)
    sender: Address | None = None
    webhooks: Annotated[tuple[Webhook, ...], Field(max_length=10)] = ()

    @property
    def anybody(self) -> bool:
        """Return whether the file names anybody beside the budget's recipients."""
        return bool(self.users or self.webhooks)


@dataclass(frozen=True, config=EXACT)
class ImageSettings:
    """Image of every instance of the stack; exactly one of ``id`` and ``parameter``.

    Where ``mode`` is ``baked``, ``base_id`` is set and ``bundled`` is not, ``id`` or ``parameter`` names the
    image that instances boot and bootstrap until the stack's first build has ended; from then on they boot
    the newest build.

    Attributes:
        id: a fixed image id.
        parameter: an SSM parameter that holds the id (AWS); read again at every launch. A build of the stack
            writes ``/imagebuilder/gpu-fleet-<stack>/ami``.
        mode: the source of agent, gate and trainer: ``bootstrap``, ``baked`` or ``none``.
        bundled: the image in ``id`` or ``parameter`` comes from this project's recipe, whose open
            kernel modules need Turing or newer.
        size_gib: size of its root disk; no pool's volume may be smaller.
        base_id: the Ubuntu 24.04 that a build starts from: an image id, on AWS also ``ssm:/parameter``; null
            for no build pipeline.
        payload: the recipe that a build runs, by its path from the top of the project: a tarball that
            ``gpu-fleet image payload`` wrote; null for that of the gpu-fleet that deploys.
        canary: whether a build is tested on a GPU of the stack before it is promoted (AWS): the gate, and an
            all-reduce over all GPUs.
        scan: whether Amazon Inspector's findings are kept with each build (AWS): a service with its own
            price, which the account must have activated for EC2.
        disk: a disk baked here (qcow2), by its path, that is imported as an image (Alibaba Cloud).
        lustre_client: the image, or the base of its builds, has Lustre's client, ``mount.lustre`` (AWS). The
            recipe brings none: its maker's kernel module is in no archive whose key is held here.
    """

    id: str | None = None
    parameter: str | None = None
    mode: ImageMode = ImageMode.BOOTSTRAP
    bundled: Switch = False
    size_gib: DiskGib = 100
    base_id: str | None = None
    payload: str | None = None
    canary: Switch = True
    scan: Switch = False
    disk: str | None = None
    lustre_client: Switch = False

    @property
    def managed(self) -> bool:
        """Return whether instances run the agent, and so may be terminated."""
        return self.mode is not ImageMode.NONE

    @property
    def built(self) -> bool:
        """Return whether the stack has a pipeline that builds images."""
        return self.base_id is not None

    @property
    def follows_builds(self) -> bool:
        """Return whether instances boot the newest build, or bootstrap another image until there is one."""
        return self.mode is ImageMode.BAKED and self.built and not self.bundled

    @property
    def bootstraps(self) -> bool:
        """Return whether instances may boot an image that lacks agent, gate and trainer."""
        return self.mode is ImageMode.BOOTSTRAP or self.follows_builds

    @staticmethod
    def built_parameter(stack: str) -> str:
        """Return the SSM parameter with the newest image built; Image Builder's own role may write it."""
        return f"/imagebuilder/gpu-fleet-{stack}/ami"


@dataclass(frozen=True, config=EXACT)
class AwsSettings:
    """Settings of AWS alone.

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
        region: the region of every resource.
        account_id: the account it belongs to; the provider refuses any other.
        owner: the user or team responsible for the stack.
        protected: buckets, keys and file systems refuse deletion.
        endpoint_url: an emulator (a moto server, say) instead of the cloud, used with throw-away credentials.
        queue: ``slurm`` for a queue over the instances of all pools, or ``none``.
        teams: team of ``access.people`` or ``access.directory`` -> its share of the queue, its limit and its
            budget; ``no-team`` for users without a team.
        tags: the organisation's own tags, key -> value, on every resource that takes any, instances too.
        aws: settings of AWS alone.
        version: the release of gpu-fleet that the file was written for, such as 0.2.0; an older gpu-fleet
            refuses the file. Null: every one reads it.
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
    version: OptionalRelease = None

    @property
    def queued(self) -> bool:
        """Return whether a queue starts jobs on the stack's instances."""
        return self.queue is not Queue.NONE

    @property
    def emulated(self) -> bool:
        """Return whether an emulator replaces the cloud; resources that moto lacks are then left out."""
        return self.endpoint_url is not None

    @property
    def flow_log_days(self) -> int:
        """Days for which the network's connections are kept."""
        return self.network.flow_log_retention_days or self.logs.retention_days

    def bucket_name(self, kind: str) -> str:
        """Return a bucket's name, known in advance; the account's id makes it globally unique."""
        return naming.prefixed(self.name, kind, self.account_id)

    def replica_name(self, kind: str) -> str:
        """Return the name of a bucket's copy in ``storage.replica_region``."""
        return self.bucket_name(f"{kind}-replica")

    @property
    def instance_log(self) -> str:
        """Destination of the instances' logs: a log group, or ``PROJECT/STORE``. Known before it exists.

        Empty where the logs are not sent.
        """
        if not self.logs.instances:
            return ""
        if self.cloud is Cloud.AWS:
            return f"/{naming.PROJECT}/{self.name}/{_INSTANCES}"
        return f"{naming.prefixed(self.name, _INSTANCES, self.account_id)}/{_INSTANCES}"

    def zones_of(self, pool: Pool) -> tuple[str, ...]:
        """Return the zones that a pool or its reservations use, in the network's order of preference."""
        used = {held.zone for held in pool.reservations} or pool.zones or self.network.zones
        return tuple(zone for zone in self.network.zones if zone in used)

    def reservations_of(self, pool: Pool) -> tuple[CapacityReservation, ...]:
        """Return the pool's reservations; empty for a pool that reserves none."""
        if pool.reservation_id is None:
            return pool.reservations
        return (CapacityReservation(pool.reservation_id, self.zones_of(pool)[0], pool.size.max),)
