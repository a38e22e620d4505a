"""Checkpoints and leases of a run in an object store; the manifest is uploaded last, and removed first."""

import hashlib
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from botocore.exceptions import ClientError

from gpu_fleet.checkpoint import local, names
from gpu_fleet.core.errors import CheckpointError
from gpu_fleet.storage.object_store import ObjectStore

TAKEN = ("PreconditionFailed", "ConditionalRequestConflict")  # codes for a key that exists already
SETTLED_AFTER_S = 2.0  # OSS reports times in whole seconds


@dataclass(frozen=True)
class LeaseKey:
    """A lease as the bucket has it; see gpu_fleet.checkpoint.lease."""

    number: int
    name: str  # name of the object below lease/
    content: str
    age_s: float  # by the object store's clock


class CheckpointStore(ObjectStore):
    """The checkpoints of one run, and its leases."""

    def upload_files(
        self, folder: Path, step: int, files: Iterable[str], moved: Callable[[int], None] = lambda _: None
    ) -> None:
        """Upload files of a checkpoint, which exists only after `commit`; `moved` is as in `put`."""
        for name in files:
            self.put(_key(step, name), folder / name, moved)
        moved(0)

    def commit(self, manifest: local.Manifest, held: Callable[[], None] = lambda: None) -> None:
        held()
        self.put(_key(manifest.step, names.MANIFEST), manifest.to_json().encode())

    def check_whole(self, manifest: local.Manifest) -> None:
        """Raise CheckpointError unless a listing has the manifest, and every file of it in its size."""
        sizes = {name: record.size for name, record in manifest.files.items()}
        expected = {**sizes, names.MANIFEST: len(manifest.to_json().encode())}
        self.check_holds(names.step_name(manifest.step), expected, f"step {manifest.step}")

    def steps(self) -> list[int]:
        return sorted(step for step, files in self._listing().items() if names.MANIFEST in files)

    def download(self, step: int, root: Path) -> None:
        folder = local.open_stage(root, step)
        self._fetch(step, names.MANIFEST, folder / names.MANIFEST)
        for name in local.read_manifest(folder).files:
            self._fetch(step, name, folder / name)
        local.commit_stage(root, local.verify(folder))

    def _fetch(self, step: int, name: str, file: Path | None = None) -> bytes:
        content = self.get(_key(step, name), file)
        if content is None:
            raise CheckpointError(f"{self.uri}: {_key(step, name)} is missing")
        return content

    def manifest(self, step: int) -> local.Manifest:
        return local.Manifest.from_json(self._fetch(step, names.MANIFEST))

    def read(self, step: int, name: str) -> bytes | None:
        """Read and verify one small file of a committed checkpoint; None if the checkpoint lacks it."""
        record = self.manifest(step).files.get(name)
        if record is None:
            return None
        content = self._fetch(step, name)
        if hashlib.sha256(content).hexdigest() != record.sha256:
            raise CheckpointError(f"{self.uri}: {name} of step {step} is not what its manifest says")
        return content

    def prune(self, newest: int, keep: int) -> None:
        """Remove the superseded checkpoints and the unfinished uploads before them, manifests first."""
        listing = self._listing()
        committed = [step for step in listing if names.MANIFEST in listing[step]]
        doomed = local.superseded(committed, newest, keep)
        for step in (step for step in listing if doomed and step <= doomed[-1]):
            for name in sorted(listing[step], key=lambda name: name != names.MANIFEST):
                self.delete(_key(step, name))

    def newest_lease(self) -> LeaseKey | None:
        """Return the lease with the highest number; if several processes claim it on OSS, the oldest."""
        with self._explained("cannot find out who holds the run"):
            answer = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._key(names.LEASE, ""))
            now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        changed = {
            item["Key"].rpartition("/")[2]: item["LastModified"] for item in answer.get("Contents", [])
        }
        claims = [
            (-number, changed_at, name)
            for name, changed_at in changed.items()
            if (number := names.lease_number(name)) is not None
        ]
        if not claims:
            return None
        claimed, changed_at, name = min(claims)
        content = (self.get(_lease(name)) or b"").decode()
        changed_at = max(changed_at, changed.get(f"{name}{names.RENEWAL}", changed_at))
        return LeaseKey(-claimed, name, content, (now - changed_at).total_seconds())

    def claim_lease(
        self, number: int, content: str, sleep: Callable[[float], None] = time.sleep
    ) -> str | None:
        """Claim a number. Return the name of this process's key; None if another process was first.

        S3 can refuse a key that exists. OSS does not refuse it in a bucket with versions: there every claim
        is a key of its own. The oldest claim wins, after a wait for claims of the same second.
        """
        name = names.LEASE_NAME.format(number)
        if self._scheme == "s3":
            return name if self._created(name, content) else None
        name = f"{name}.{uuid.uuid4().hex}"
        self.put_lease(name, content)
        sleep(SETTLED_AFTER_S)
        newest = self.newest_lease()
        if newest is not None and newest.name == name:
            return name
        self.delete(_lease(name))
        return None

    def _created(self, name: str, content: str) -> bool:
        key = self._key(_lease(name))
        with self._explained("cannot take the lease"):
            try:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=content.encode(), IfNoneMatch="*")
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in TAKEN:
                    raise
                # this claim may have succeeded, if boto3 lost the first answer
                return self.get(_lease(name)) == content.encode()
        return True

    def put_lease(self, name: str, content: str) -> None:
        self.put(_lease(name), content.encode())

    def drop_leases_before(self, number: int) -> None:
        """Remove the leases below `number`, as far as the bucket allows it."""
        for name in self.sizes(names.LEASE):
            other = names.lease_number(name.removesuffix(names.RENEWAL))
            if other is not None and other < number and not self.remove_if_allowed(_lease(name)):
                return

    def _listing(self) -> dict[int, set[str]]:
        files: dict[int, set[str]] = {}
        for key in self.sizes(""):
            folder, _, name = key.partition("/")
            step = names.step_of(folder)
            if step is not None and name:
                files.setdefault(step, set()).add(name)
        return files


def _key(step: int, name: str) -> str:
    return f"{names.step_name(step)}/{name}"


def _lease(name: str) -> str:
    return f"{names.LEASE}/{name}"
