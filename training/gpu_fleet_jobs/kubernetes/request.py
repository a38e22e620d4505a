"""A user's request to a cluster, checked before anything is written; one message names every mistake."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from gpu_fleet.core import config
from gpu_fleet.core.errors import ConfigError, ParallelError

WORKSPACE = PurePosixPath("/workspace")  # the pod's folder for the files of the user's current folder
BUCKETS = ("s3://", "oss://")
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")  # RFC 1123
SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035: names of Services begin with a letter
LABEL_LENGTH, SUBDOMAIN_LENGTH = 63, 253
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?)?")
LABEL_KEY = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
IMAGE = re.compile(r"[a-z0-9][a-zA-Z0-9._:/-]*(@sha256:[0-9a-f]{64})?")
# A pod's host name is NAME-INDEX, its own name NAME-INDEX-RANDOM; a TrainJob's pod has the longest name.
NAME_SUFFIX = "-node-0-99999-xxxxx"
GRACE_BESIDE_SAVE_S = 30  # time for the ranks to agree and end their step, and for the processes to end
SHM_GIB_PER_PROCESS = 2


@dataclass(frozen=True)
class Claim:
    """A PersistentVolumeClaim by its name, and the folder of the pod where its volume is mounted."""

    name: str
    folder: PurePosixPath  # absolute

    def holds(self, path: str) -> bool:
        """Return whether a path of a configuration is on this volume."""
        return (WORKSPACE / path).is_relative_to(self.folder)


@dataclass(frozen=True)
class ClusterRequest:
    """One run on a cluster. Sizes are per pod; each node of the run has exactly one pod."""

    settings: config.Config
    arguments: tuple[str, ...]  # for `launch`: the configuration, overrides and flags
    name: str
    image: str
    nodes: int
    gpus: int
    namespace: str = ""
    trainjob: bool = False
    queue: str = ""  # a LocalQueue of Kueue
    service_account: str = ""
    claims: tuple[Claim, ...] = ()
    cpu: str = ""
    memory: str = ""
    shm_gib: int = 0  # 0: SHM_GIB_PER_PROCESS
    efa: int = 0
    hugepages: str = ""
    selector: tuple[tuple[str, str], ...] = ()
    user: int = 1000
    retries: int = 5

    @property
    def processes(self) -> int:
        """Number of processes of one pod."""
        return max(1, self.gpus)

    @property
    def shared_memory_gib(self) -> int:
        """Size of `/dev/shm`, which reader processes and NCCL use."""
        return self.shm_gib or SHM_GIB_PER_PROCESS * self.processes

    @property
    def grace_s(self) -> int:
        """Seconds from SIGTERM to SIGKILL."""
        return self.settings.interrupt.save_s + GRACE_BESIDE_SAVE_S


def check(request: ClusterRequest) -> None:
    """Raise ConfigError with a line for each mistake: flag or key, value, and what is allowed."""
    problems = [*_names(request), *_sizes(request), *_ranks(request), *_places(request)]
    if problems:
        raise ConfigError("\n".join(problems))


def warnings(request: ClusterRequest) -> Iterator[str]:
    """Yield a warning for each value that is allowed but may surprise."""
    if "@sha256:" not in request.image:
        yield (
            f"--image = {request.image!r}: has no digest, so a pod that is replaced may start another image; "
            "write NAME@sha256:..."
        )
    if request.efa:
        yield (
            f"--efa = {request.efa}: needs libfabric and aws-ofi-nccl in the image; that of "
            "`gpu-fleet image bake oci` has neither, and NCCL would use TCP"
        )
    if request.settings.checkpoint.uri.startswith(BUCKETS) and not request.service_account:
        yield "--service-account = '': pods access the bucket with the rights of the node or the image"
    for key, path in _paths(request.settings):
        if path.startswith("/") and not any(claim.holds(path) for claim in request.claims):
            yield f"{key} = {path!r}: is on no --claim, so the image must have it"


def parse_claim(text: str) -> Claim:
    """Parse NAME or NAME:FOLDER, with the folder relative to the workspace; raises ConfigError."""
    name, _, folder = text.partition(":")
    place = WORKSPACE / (folder or "data")
    if ".." in place.parts or place in (WORKSPACE, PurePosixPath("/")):
        raise ConfigError(f"--claim = {text!r}: the folder must be one below that of the run, or absolute")
    if place == PurePosixPath("/tmp") or place.is_relative_to("/dev"):  # noqa: S108 - of the pod
        raise ConfigError(f"--claim = {text!r}: {place} is another volume of the pod")
    return Claim(name, place)


def parse_selector(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE of a label of nodes; raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
        raise ConfigError(
            f"--node-selector = {text!r}: write KEY=VALUE of a node's label, such as "
            "node.kubernetes.io/instance-type=p5.48xlarge"
        )
    return key, value


def default_name(directory: str) -> str:
    """Return a name for the run of a directory; empty if its last part has no letter."""
    name = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(directory).name.lower()).lstrip("-0123456789").rstrip("-")
    return name[: LABEL_LENGTH - len(NAME_SUFFIX)].strip("-")


def _names(request: ClusterRequest) -> Iterator[str]:
    longest = LABEL_LENGTH - len(NAME_SUFFIX)
    if not SERVICE.fullmatch(request.name) or len(request.name) > longest:
        yield (
            f"--name = {request.name!r}: must be a DNS label of at most {longest} characters: "
            "a-z, 0-9 and -, beginning with a letter"
        )
    if request.namespace and not _is_label(request.namespace):
        yield (
            f"--namespace = {request.namespace!r}: must be a DNS label of at most {LABEL_LENGTH} characters: "
            "a-z, 0-9 and -"
        )
    others = [("--service-account", request.service_account), ("--queue", request.queue)]
    others += [("--claim", claim.name) for claim in request.claims]
    for flag, name in others:
        if (name or flag == "--claim") and not _is_subdomain(name):
            yield f"{flag} = {name!r}: must be the name of an object of the namespace: a-z, 0-9, - and ."
    folders = [claim.folder for claim in request.claims]
    for folder in sorted({folder for folder in folders if folders.count(folder) > 1}):
        yield f"--claim: two volumes cannot both be {folder}"
    if not IMAGE.fullmatch(request.image):
        yield f"--image = {request.image!r}: must be REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:HASH"


def _is_label(name: str) -> bool:
    return bool(LABEL.fullmatch(name)) and len(name) <= LABEL_LENGTH


def _is_subdomain(name: str) -> bool:
    return len(name) <= SUBDOMAIN_LENGTH and all(LABEL.fullmatch(part) for part in name.split("."))


def _sizes(request: ClusterRequest) -> Iterator[str]:
    least = {"--nodes": (request.nodes, 1), "--gpus": (request.gpus, 0), "--shm-gib": (request.shm_gib, 0)}
    least |= {"--efa": (request.efa, 0), "--user": (request.user, 1), "--retries": (request.retries, 0)}
    for flag, (value, lowest) in least.items():
        if value < lowest:
            yield f"{flag} = {value}: must be at least {lowest}"
    quantities = {"--cpu": request.cpu, "--memory": request.memory, "--hugepages": request.hugepages}
    for flag, text in quantities.items():
        if text and not QUANTITY.fullmatch(text):
            yield f"{flag} = {text!r}: must be a quantity of Kubernetes, such as 8, 500m or 64Gi"
    if request.hugepages and not (request.memory or request.cpu):
        yield f"--hugepages = {request.hugepages!r}: needs --memory, which Kubernetes requires"


def _ranks(request: ClusterRequest) -> Iterator[str]:
    from gpu_fleet.core.world import check_sizes  # noqa: PLC0415 - torch: seconds that --help need not pay

    if request.nodes < 1 or request.gpus < 0:
        return
    try:
        check_sizes(request.settings, request.nodes * request.processes)
    except ParallelError as error:
        yield f"{error} (--nodes {request.nodes} x {request.processes} processes)"


def _places(request: ClusterRequest) -> Iterator[str]:
    settings = request.settings
    for key, path in _paths(settings):
        if path.startswith("/") or any(claim.holds(path) for claim in request.claims):
            continue
        first = PurePosixPath(path).parts[0]
        yield (
            f"{key} = {path!r}: is on this computer; put it onto a PersistentVolumeClaim and set "
            f"--claim NAME:{'/FOLDER, and the key from there' if first == '..' else first}, or use a bucket "
            "if the key allows one"
        )
    directory, uri = settings.run.directory, settings.checkpoint.uri
    if ".." in PurePosixPath(directory).parts:
        yield f"run.directory = {directory!r}: must be below the folder of the run, or absolute"
    if not uri.startswith(BUCKETS) and not any(claim.holds(directory) for claim in request.claims):
        yield (
            f"checkpoint.uri = {uri!r}: a pod's own disk is lost with the pod; set --checkpoint.uri "
            "s3://BUCKET/PREFIX or oss://BUCKET/PREFIX, or --claim NAME:FOLDER with run.directory on a "
            "volume that all pods share"
        )
    if uri.startswith("oss://") and not settings.checkpoint.endpoint:
        yield (
            "checkpoint.endpoint = '': must be the endpoint of OSS, such as "
            "https://s3.oss-cn-beijing-internal.aliyuncs.com"
        )


def _paths(settings: config.Config) -> Iterator[tuple[str, str]]:
    """Yield (key, path) of the files and folders that a run reads from a disk."""
    model, data = settings.model, settings.data
    read = {"data.path": data.path, "model.weights": model.weights, "model.config": model.config}
    for key, path in read.items():
        if path and not path.startswith(BUCKETS):
            yield key, path
