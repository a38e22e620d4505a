"""``gpu-fleet restore``: copy a run's newest complete checkpoint into another stack."""

import hashlib
import json
import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
from boto3.exceptions import Boto3Error
from botocore.exceptions import BotoCoreError, ClientError

from gpu_fleet_image.console.data.bucket import SHA256, DataBucket
from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.options import POOL_NAME, where_options
from gpu_fleet_image.core.place import SCHEMES, Asked, Place, account_of, place_of, published
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, nearest
from gpu_fleet_image.core.shared_options import inert, note

MANIFEST = "manifest.json"  # training/gpu_fleet/checkpoint/names.py; a test keeps them equal
FORMAT = 2
_STEP = re.compile(r"(?P<run>.+)/step-(?P<step>[0-9]{1,18})/(?P<name>[^/]+)")
_SOURCE = re.compile(r"(s3|oss)://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/?")
MOST_NAMED = 10


@dataclass(frozen=True)
class SavedStep:
    """A complete checkpoint of a run.

    Attributes:
        run: prefix of the run, ``POOL/OWNER/DIRECTORY``.
        files: name -> (bytes, SHA-256), without the manifest.
        manifest: its bytes; copied last, with them the checkpoint exists.
    """

    run: str
    step: int
    files: Mapping[str, tuple[int, str]]
    config: Mapping[str, Any]
    manifest: bytes

    def key(self, name: str, run: str = "") -> str:
        """Return the key of a file, of this run or of another one."""
        return f"{run or self.run}/step-{self.step}/{name}"


@click.command(
    epilog="\b\nExample:\n  gpu-fleet restore runs/tiny --stack aws-drill "
    "--from s3://gpu-fleet-aws-prod-checkpoints-replica-123456789012 --from-region us-west-2"
)
@click.argument("run", metavar="RUN")
@click.option(
    "--from",
    "source",
    metavar="URI",
    required=True,
    help="Bucket of the checkpoints: an address of the outputs bucket_uris or replica_bucket_uris.",
)
@click.option("--from-region", metavar="REGION", help="Its region; by default that of the stack.")
@click.option("--pool", type=POOL_NAME, metavar="NAME", help="Pool that continues; by default the same name.")
@where_options
def restore(run: str, source: str, from_region: str | None, pool: str | None, asked: Asked) -> None:
    """Copy the newest complete checkpoint of RUN into the stack, so that RUN can be continued there.

    RUN is the run.directory of its configuration, if need be with its owner, as ada/runs/tiny. The checkpoint
    keeps its identity, so that the run resumes as after any interruption. Nothing is overwritten: a stack
    that has checkpoints of RUN already is refused. The same command continues a copy that was cut short.
    """
    if not set(run.strip("/").split("/")).isdisjoint(("", ".", "..")):
        raise ConfigurationError(
            f"RUN {run!r}: must be the run.directory of a configuration, such as runs/tiny, without . and .."
        )
    if pool is not None:
        asked.refuse_pool("--pool", pool)
    place = place_of(asked)
    theirs = _source(source, place, from_region)
    account = place.account_id or account_of(place)
    ours = _bucket(place.cloud, place.region, place.bucket(account, "checkpoints"))
    saved = newest(theirs, run)
    target = _target(place, saved.run, pool)
    if theirs.name == ours.name and target == saved.run:
        raise ConfigurationError(f"--from {source}: is the stack's own bucket; the run is there already")
    if copied(theirs, ours, saved, target):
        read_back = f"{_files(saved)}, read back by listing"
        click.echo(inert(f"step {saved.step} of {saved.run} is in {ours.uri}/{target}: {read_back}"))
    else:
        click.echo(inert(f"step {saved.step} of {saved.run} is in {ours.uri}/{target} already, and complete"))
    _say_how_to_continue(saved, target, place)


def newest(bucket: DataBucket, run: str) -> SavedStep:
    """Return the newest complete checkpoint of a run, by the rules of the trainer.

    Raises:
        ConfigurationError: no run or several have this name, or none of its checkpoints is complete.
        CloudError: the bucket does not answer.
    """
    steps: dict[str, dict[int, dict[str, int]]] = {}
    for item in bucket.listed(""):
        if match := _STEP.fullmatch(str(item["Key"])):
            files = steps.setdefault(match["run"], {}).setdefault(int(match["step"]), {})
            files[match["name"]] = int(item["Size"])
    wanted = run.strip("/")
    fitting = [each for each in sorted(steps) if each == wanted or each.endswith(f"/{wanted}")]
    if len(fitting) != 1:
        known = ", ".join((fitting or sorted(steps))[:MOST_NAMED]) or "none"
        what = "several runs have this name; they are" if fitting else "no such run; there are"
        raise ConfigurationError(f"RUN {run!r} in {bucket.uri}: {what}: {known}{nearest(wanted, steps)}")
    for step, files in sorted(steps[fitting[0]].items(), reverse=True):
        problem, checkpoint = _read(bucket, fitting[0], step, files)
        if checkpoint is not None:
            return checkpoint
        note(f"warning: step {step} of {fitting[0]} {problem}; looking at the one before")
    raise ConfigurationError(f"RUN {run!r} in {bucket.uri}: none of its checkpoints is complete")


def _read(bucket: DataBucket, run: str, step: int, files: Mapping[str, int]) -> tuple[str, SavedStep | None]:
    """Return a checkpoint, or why it is not complete."""
    if MANIFEST not in files:
        return "has no manifest", None
    key = f"{run}/step-{step}/{MANIFEST}"
    content: bytes = bucket.calls.read(bucket.s3.get_object, Bucket=bucket.name, Key=key)["Body"].read()
    try:
        table = json.loads(content)
        stated = table.pop("checksum")
        named = {str(name): (int(each["size"]), str(each["sha256"])) for name, each in table["files"].items()}
        config = dict(table.get("config") or {})
    except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "has a manifest that cannot be read", None
    if table.get("format") != FORMAT:
        return f"is of format {table.get('format')!r}; this program copies {FORMAT}", None
    if stated != hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest():
        return "has a manifest that is damaged", None
    missing = [name for name, (size, _) in named.items() if "/" in name or files.get(name) != size]
    if missing:
        return f"lacks {', '.join(missing[:MOST_NAMED])}", None
    return "", SavedStep(run, step, named, config, content)


def copied(theirs: DataBucket, ours: DataBucket, saved: SavedStep, target: str) -> bool:
    """Copy a checkpoint, its manifest last, and read it back; return False if it is there already.

    Raises:
        ConfigurationError: the run has other checkpoints there.
        CloudError: a bucket does not answer, or what arrived is not what the manifest says.
    """
    there = {str(item["Key"]): int(item["Size"]) for item in ours.listed(f"{target}/")}
    sizes = {name: size for name, (size, _) in saved.files.items()} | {MANIFEST: len(saved.manifest)}
    expected = {saved.key(name, target): size for name, size in sizes.items()}
    if expected.items() <= there.items():
        return False
    if taken := [key for key in there if _STEP.fullmatch(key) and key.endswith(f"/{MANIFEST}")]:
        raise ConfigurationError(
            f"{ours.uri}/{target} has checkpoints already, as {taken[0]}; nothing is overwritten: --pool "
            "names another pool"
        )
    for name, (size, sha256) in saved.files.items():
        key = saved.key(name, target)
        # the size alone says nothing: a checkpoint of this step that was never completed has the same
        stored = ours.stored(key) if there.get(key) == size else None
        if stored is None or stored.sha256 != sha256:
            note(f"copying {name}, {size:,} bytes")
            _copy(theirs, ours, (saved.key(name), key), sha256)
    key = saved.key(MANIFEST, target)
    ours.calls.change(ours.s3.put_object, Bucket=ours.name, Key=key, Body=saved.manifest)
    back = {str(item["Key"]): int(item["Size"]) for item in ours.listed(f"{target}/step-{saved.step}/")}
    if wrong := [key for key, size in expected.items() if back.get(key) != size]:
        raise CloudError(f"{ours.uri}: not whole after the copy: {', '.join(wrong[:MOST_NAMED])}")
    return True


def _copy(theirs: DataBucket, ours: DataBucket, keys: tuple[str, str], sha256: str) -> None:
    """Copy one object: between buckets of S3 inside the cloud, else through this computer, by its SHA-256."""
    before, after = keys
    try:
        if theirs.uri.startswith("s3://") and ours.uri.startswith("s3://"):
            place = {"Bucket": theirs.name, "Key": before}
            marked = {"Metadata": {SHA256: sha256}, "MetadataDirective": "REPLACE"}
            ours.s3.copy(place, ours.name, after, ExtraArgs=marked, SourceClient=theirs.s3)
            return
        with tempfile.NamedTemporaryFile(prefix="gpu-fleet-") as file:
            theirs.s3.download_fileobj(theirs.name, before, file)
            file.flush()
            file.seek(0)
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise CloudError(f"{theirs.uri}/{before}: its checksum is not what the manifest says")
            ours.s3.upload_file(file.name, ours.name, after, ExtraArgs={"Metadata": {SHA256: sha256}})
    except (ClientError, BotoCoreError, Boto3Error) as error:
        raise CloudError(f"copy to {ours.uri}/{after}: {error}; the same command continues") from error


def _source(uri: str, place: Place, region: str | None) -> DataBucket:
    match = _SOURCE.fullmatch(uri)
    if match is None:
        raise ConfigurationError(
            f"--from {uri!r}; allowed: s3://BUCKET or oss://BUCKET, a bucket's name of 3 to 63 characters "
            "without a prefix"
        )
    cloud = next(cloud for cloud, scheme in SCHEMES.items() if scheme == match[1])
    if cloud != place.cloud and region is None:
        raise ConfigurationError(f"--from-region is missing: --from {uri} is another cloud's than the stack")
    return _bucket(cloud, region or place.region, match[2])


def _bucket(cloud: str, region: str, name: str) -> DataBucket:
    calls = Calls(lambda: datetime.now(UTC))
    return DataBucket(clouds.bucket_client(cloud, region), calls, name, f"{SCHEMES[cloud]}://{name}")


def _target(place: Place, run: str, pool: str | None) -> str:
    """Return the prefix of the run in the stack; raises ConfigurationError if the stack lacks the pool."""
    before, _, rest = run.partition("/")
    wanted = pool or before
    pools = published(place, place.account_id or account_of(place)).pools
    if wanted not in pools:
        why = "" if pool else f", where RUN has its checkpoints: --pool names another of {place.stack}"
        raise ConfigurationError(
            f"--pool {wanted!r}: no such pool{why}; stack {place.stack} has {', '.join(pools)}"
        )
    return f"{wanted}/{rest}"


def _say_how_to_continue(saved: SavedStep, target: str, place: Place) -> None:
    """Print the command that continues the run, and what it needs beside the checkpoint."""
    pool, owner, directory = target.split("/", 2) if target.count("/") > 1 else (*target.split("/", 1), "")
    data = saved.config.get("data")
    source = str(data.get("path") or "") if isinstance(data, dict) else ""
    words = ["gpu-fleet", "submit", "CONFIG", "--pool", pool, "--as", owner, "--stack", place.stack]
    said = f"continue as {owner}, with its configuration and run.directory = {directory!r}:"
    click.echo(inert(f"{said}\n  {shlex.join(words)}"))
    if source.startswith(tuple(f"{scheme}://" for scheme in SCHEMES.values())):
        note(f"its data.path is {source}: the stack must be able to read it, or gpu-fleet data copies it")


def _files(saved: SavedStep) -> str:
    size = sum(size for size, _ in saved.files.values())
    return f"{len(saved.files) + 1} files, {size + len(saved.manifest):,} bytes"
