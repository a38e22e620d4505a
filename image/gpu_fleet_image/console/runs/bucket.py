"""The part of a stack's records bucket with its jobs and their instances' status."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.place import Place, account_of
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.runs import (
    ARCHIVE,
    CANCEL,
    JOB,
    LOG,
    RUNS,
    STATE,
    Job,
    NodeState,
    Phase,
    job_of,
    job_prefix,
    node_prefix,
    refusal_of,
    state_of,
)
from gpu_fleet_image.core.store import ABSENT, objects_below

NEWEST = 20  # jobs that are read: each takes a call, and its states take more
_TIME_LENGTH = len("20261122-210405-3f9a")  # time and tag, at the end of a run's name


@dataclass(frozen=True)
class RunBucket:
    """Jobs and status of one stack's runs.

    Attributes:
        s3: boto3's client for S3 or OSS.
    """

    s3: Any
    calls: Calls
    name: str

    def submit(self, job: Job, archive: bytes) -> None:
        """Write the files, then the job, which has their hash.

        Raises:
            ConfigurationError: the credentials may not submit as this account.
            CloudError: the bucket does not answer.
        """
        prefix = job_prefix(job.account, job.run)
        for name, content in ((ARCHIVE, archive), (JOB, job.content())):
            self._put(prefix + name, content, job.account)

    def job(self, account: str, run: str) -> Job | None:
        """Return a job; None if there is none. Raises CloudError, ConfigurationError."""
        content = self._get(job_prefix(account, run) + JOB, account)
        job = None if content is None else job_of(content)
        return job if job and (job.account, job.run) == (account, run) else None

    def archive(self, job: Job) -> bytes:
        """Return a job's files; empty if they are gone, or not those that the job names."""
        content = self._get(job_prefix(job.account, job.run) + ARCHIVE, job.account) or b""
        return content if hashlib.sha256(content).hexdigest() == job.archive_sha256 else b""

    def jobs(self, account: str, heard_since: datetime | None = None) -> list[Job]:
        """Return the newest jobs of an account, newest first, without malformed ones.

        Args:
            heard_since: add all older jobs whose instances have reported since then.
        """
        names = {
            key.removeprefix(job_prefix(account)).partition("/")[0]
            for key in self._keys(job_prefix(account), account)
        }
        chosen = set(sorted(names, key=lambda name: name[-_TIME_LENGTH:], reverse=True)[:NEWEST])
        if heard_since is not None and len(names) > NEWEST:
            chosen |= names & self._heard(account, heard_since)
        jobs = [job for run in chosen if (job := self.job(account, run)) is not None]
        return sorted(jobs, key=lambda job: (job.at, job.run), reverse=True)

    def _heard(self, account: str, since: datetime) -> set[str]:
        """Return the runs whose instances have reported since a time."""
        listed = self._listed(f"{RUNS}/{account}/", account)
        spoken = [item["Key"] for item in listed if item["LastModified"] >= since]
        return {key.split("/")[-3] for key in spoken if key.endswith(f"/{STATE}")}

    def states(self, job: Job) -> list[NodeState]:
        """Return each instance's state of a run, by rank.

        REFUSED for instances of a run that was not sent.
        """
        said = [self.state(node_prefix(job, member.id), job.account) for member in job.instances]
        if all(state.phase is not Phase.SENT for state in said):
            return said
        refusal = refusal_of(self._get(job_prefix(job.account, job.run) + CANCEL, job.account))
        return [refusal if refusal and state.phase is Phase.SENT else state for state in said]

    def state(self, place: str, account: str) -> NodeState:
        """Return the state at one place of an account."""
        return state_of(self._get(place + STATE, account))

    def log_keys(self, place: str, account: str) -> list[str]:
        """Return the keys of a log's parts, in order."""
        return sorted(self._keys(f"{place}{LOG}/", account))

    def part(self, key: str, account: str) -> bytes:
        """Return a part of a log; empty if it is gone."""
        return self._get(key, account) or b""

    def cancel(self, account: str, run: str, by: str, now: datetime) -> None:
        """Ask the instances of a run to save and stop."""
        self._end(account, run, {"by": by, "at": now.isoformat()})

    def refuse(self, job: Job, why: str, now: datetime) -> None:
        """Record that a run was not sent; an instance that got it nevertheless stops it."""
        self._end(job.account, job.run, {"by": job.by, "at": now.isoformat(), "refused": why})

    def _end(self, account: str, run: str, said: Mapping[str, str]) -> None:
        self._put(job_prefix(account, run) + CANCEL, json.dumps(said).encode(), account)

    def _put(self, key: str, content: bytes, account: str) -> None:
        try:
            self.calls.change(self.s3.put_object, Bucket=self.name, Key=key, Body=content)
        except CloudError as error:
            raise self._explained(error, account) from error

    def _get(self, key: str, account: str) -> bytes | None:
        try:
            answer = self.calls.read(self.s3.get_object, Bucket=self.name, Key=key)
        except CloudError as error:
            # S3 denies reading a missing object if a policy limits the prefixes that may be listed
            if error.code in ABSENT or (error.code in DENIED and key not in self._keys(key, account)):
                return None
            raise self._explained(error, account) from error
        content: bytes = answer["Body"].read()
        return content

    def _keys(self, prefix: str, account: str) -> Iterator[str]:
        return (str(item["Key"]) for item in self._listed(prefix, account))

    def _listed(self, prefix: str, account: str) -> Iterator[dict[str, Any]]:
        try:
            yield from objects_below(self.s3, self.name, prefix, self.calls.read)
        except CloudError as error:
            raise self._explained(error, account) from error

    def _explained(self, error: CloudError, account: str) -> Exception:
        if error.code not in DENIED:
            return error
        return ConfigurationError(
            f"--as {account}: these credentials may not act as this account ({error}). On AWS their tag "
            "SSMSessionRunAs names it and the output people_policy is attached; on Alibaba Cloud the output "
            "submit_policies has a policy for each account"
        )


def run_bucket(place: Place) -> RunBucket:
    """Return the bucket of a stack; raises CloudError if its account is unknown."""
    account = place.account_id or account_of(place)
    s3 = clouds.bucket_client(place.cloud, place.region)
    return RunBucket(s3, Calls(lambda: datetime.now(UTC)), f"gpu-fleet-{place.stack}-records-{account}")
