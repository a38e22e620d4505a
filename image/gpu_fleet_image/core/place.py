"""Location of a stack and its published policy, for users' commands, wherever they run."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core import instance_file, keys, paths
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.cloud import LEDGER_URI, POLICY_FILE, policy_file
from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, InstanceFileError, nearest
from gpu_fleet_image.core.store import ABSENT

SCHEMES = {"aws": "s3", "alicloud": "oss"}
REGION_VARIABLES = {"aws": ("AWS_REGION", "AWS_DEFAULT_REGION"), "alicloud": ("ALIBABA_CLOUD_REGION_ID",)}
NO_BUCKET = "NoSuchBucket"


class StackFiles(Protocol):
    """Stack files of a checkout; a command that runs elsewhere has none."""

    def names(self) -> list[str]:
        """Return the names of all stacks that have a file."""

    def place(self, name: str) -> Mapping[str, str]:
        """Return cloud, region, account_id and endpoint_url of a stack, if its file has them."""

    def pools(self, name: str) -> list[str]:
        """Return the names of a stack's pools."""


@dataclass(frozen=True)
class Place:
    """Location of one stack.

    Attributes:
        cloud: ``aws`` or ``alicloud``.
        account_id: its account; empty for that of the credentials.
        endpoint_url: of an emulator; empty for the cloud itself.
    """

    stack: str
    cloud: str
    region: str
    account_id: str = ""
    endpoint_url: str = ""

    def bucket(self, account_id: str, kind: str = "records") -> str:
        """Return the name of the stack's bucket of a kind: ``data``, ``checkpoints`` or ``records``."""
        return f"gpu-fleet-{self.stack}-{kind}-{account_id}"


@dataclass(frozen=True)
class Asked:
    """Flags of a command line that select a stack.

    Attributes:
        policy_path: ``--policy``.
        stack, cloud, region, account_id: the flags of these names.
        ledger: ``--ledger``.
        files: the stack files here, if any.
    """

    policy_path: Path | None = None
    stack: str | None = None
    cloud: str | None = None
    region: str | None = None
    account_id: str | None = None
    ledger: str | None = None
    files: StackFiles | None = None

    def refuse_pool(self, key: str, pool: str) -> None:
        """Refuse a pool that the stack's file here does not have, before any call to a cloud.

        Flags for the location may mean another stack of that name; then its published policy decides.

        Raises ConfigurationError, which names the pools that the file has.
        """
        elsewhere = self.policy_path or self.region or self.account_id
        pools = self.files.pools(self.stack) if self.files and self.stack and not elsewhere else []
        if pools and pool not in pools:
            raise ConfigurationError(
                f"{key} {pool!r}: no such pool; stack {self.stack} has {', '.join(pools)} in its file here"
                f"{nearest(pool, pools)}"
            )

    @property
    def is_silent(self) -> bool:
        """True if neither a flag nor the environment selects a stack."""
        return not (self.policy_path or self.stack or policy_file().exists() or os.environ.get(POLICY_FILE))


@dataclass(frozen=True)
class Subject:
    """Stack that a command is about.

    Attributes:
        environ: the environment with the stack's ledger, as ``core.cloud.connect`` expects it.
    """

    policy: Policy
    environ: Mapping[str, str]


def subject(asked: Asked) -> Subject:
    """Return the policy of the selected stack, from a file or from the stack's own bucket.

    Raises ReaperError if the stack is not known, or its policy cannot be read.
    """
    own = {LEDGER_URI: asked.ledger} if asked.ledger else {}
    if not asked.stack and not asked.is_silent:
        return Subject(policies.load(asked.policy_path or policy_file()), {**os.environ, **own})
    place = place_of(asked)
    account = place.account_id or account_of(place)
    ledger = {LEDGER_URI: ledger_uri(place, account)}
    policy = policies.load(asked.policy_path) if asked.policy_path else published(place, account)
    if policy.stack != place.stack:
        raise ConfigurationError(f"--policy is of stack {policy.stack!r}, --stack is {place.stack!r}")
    return Subject(policy, {**ledger, **os.environ, **own})


def ledger_uri(place: Place, account_id: str) -> str:
    """Return the URI of the sweep's records."""
    return f"{SCHEMES[place.cloud]}://{place.bucket(account_id)}/{keys.LEDGER}"


def place_of(asked: Asked) -> Place:
    """Return the stack's location: from flags, its file in a checkout, this instance, or the environment.

    Raises ConfigurationError if nothing names the stack or its region.
    """
    here = _instance()
    name = asked.stack or here.get("stack")
    if not name:
        raise ConfigurationError(
            f"--stack is missing, and this is no instance of a stack{_here(asked.files)}"
        )
    file = dict(asked.files.place(name)) if asked.files and name in asked.files.names() else {}
    known = {**(here if here.get("stack") == name else {}), **file}
    cloud = asked.cloud or known.get("cloud") or cloud_of_environment()
    region = asked.region or known.get("region") or region_of_environment(cloud)
    if not region:
        raise ConfigurationError(_no_region(name, cloud, asked.files))
    place = Place(
        name, cloud, region, asked.account_id or known.get("account_id", ""), known.get("endpoint_url", "")
    )
    if place.endpoint_url:
        _use_emulator(place.endpoint_url)
    return place


def published(place: Place, account_id: str) -> Policy:
    """Return the policy that a stack published in its bucket.

    Raises:
        ConfigurationError: the stack is not deployed there, or has published none.
        CloudError: access is denied, or the cloud does not answer.
    """
    bucket = place.bucket(account_id)
    where = f"{SCHEMES[place.cloud]}://{bucket}/{keys.stored(keys.POLICY)}"
    s3 = clouds.bucket_client(place.cloud, place.region)
    try:
        answer = _calls().read(s3.get_object, Bucket=bucket, Key=keys.stored(keys.POLICY))
    except CloudError as error:
        if error.code == NO_BUCKET:
            raise ConfigurationError(
                f"{where}: no such bucket; is stack {place.stack!r} deployed in account {account_id}? "
                "--account and --region name another"
            ) from error
        if error.code in ABSENT:
            raise ConfigurationError(
                f"{where}: not there; `gpu-fleet up {place.stack}` publishes it. Or name a file with --policy"
            ) from error
        if error.code in DENIED:
            raise CloudError(
                f"{where} may not be read with these credentials: {error}", error.code
            ) from error
        raise
    return policies.parse(answer["Body"].read().decode("utf-8", "replace"), where)


def account_of(place: Place) -> str:
    """Return the account of the credentials. Raises CloudError if there are none, or they are refused."""
    account: str = clouds.module(place.cloud).account_id(place.region, _calls())
    return account


def region_of_environment(cloud: str) -> str | None:
    """Return the region in the environment, if there is one."""
    return next(filter(None, map(os.environ.get, REGION_VARIABLES[cloud])), None)


def cloud_of_environment() -> str:
    """Return the first cloud whose region the environment names."""
    return next((cloud for cloud in clouds.CLOUDS if region_of_environment(cloud)), clouds.CLOUDS[0])


def _instance() -> dict[str, str]:
    """Return cloud, region and stack of this instance's file; empty elsewhere."""
    if not paths.instance_file().exists():
        return {}
    try:
        instance = instance_file.load(paths.instance_file())
    except InstanceFileError as error:
        raise ConfigurationError(str(error)) from error
    return {"stack": instance.stack, "cloud": instance.cloud, "region": instance.region}


def _no_region(name: str, cloud: str, files: StackFiles | None) -> str:
    variable = REGION_VARIABLES[cloud][0]
    return f"stack {name!r} has no file here; name its region with --region (or {variable}){_here(files)}"


def _here(files: StackFiles | None) -> str:
    names = ", ".join(files.names()) if files else ""
    return f"; the stack files here are {names}" if names else ""


def _use_emulator(url: str) -> None:
    """Direct every client of this process to the stack file's emulator, which accepts any credentials."""
    os.environ.setdefault("AWS_ENDPOINT_URL", url)
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(variable, "emulator")


def _calls() -> Calls:
    now: Callable[[], datetime] = lambda: datetime.now(UTC)  # noqa: E731 - a clock
    return Calls(now, read_only=True)
