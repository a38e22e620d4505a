"""The pod of a run: one container that finds the other pods by torchrun's variables.

It meets the Pod Security Standard "restricted": no root, and no privilege escalation. In addition, its root
file system is read-only. https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gpu_fleet_jobs.kubernetes.request import WORKSPACE, ClusterRequest
from gpu_fleet_jobs.kubernetes.sources import Source
from gpu_fleet_jobs.launch.network import EFA
from gpu_fleet_jobs.launch.rendezvous import HOST, HOST_PORT, NODES, PORT, PROCESSES, RANK

Manifest = dict[str, Any]
COMMAND = ["python", "-m", "gpu_fleet"]
GPU, EFA_INTERFACE, HUGE_PAGES = "nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# torch, CUDA and transformers keep caches in HOME. USER is set as the account has no name in the image.
HOME = {"HOME": "/tmp", "USER": "gpu-fleet", "PYTHONUNBUFFERED": "1"}  # noqa: S108 - of the pod


def template(request: ClusterRequest, sources: Sequence[Source], container: str) -> Manifest:
    """Return the pod template; `container` is the name of its only container."""
    spec: Manifest = {
        "restartPolicy": "Never",  # the Job's policy decides about a new pod
        "terminationGracePeriodSeconds": request.grace_s,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,  # roles have their own token, and nothing calls the API
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": request.user,
            "runAsGroup": request.user,
            "fsGroup": request.user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(request, sources, container)],
        "volumes": list(_volumes(request)),
    }
    if request.service_account:
        spec["serviceAccountName"] = request.service_account
    if request.gpus:
        spec["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    if request.selector:
        spec["nodeSelector"] = dict(request.selector)
    if not request.trainjob:
        spec["subdomain"] = request.name
    return {"metadata": {"labels": {"app.kubernetes.io/name": request.name}}, "spec": spec}


def _container(request: ClusterRequest, sources: Sequence[Source], name: str) -> Manifest:
    return {
        "name": name,
        "image": request.image,
        "command": COMMAND,
        # Kubernetes would expand $(NAME) as a variable
        "args": ["launch", *(text.replace("$(", "$$(") for text in request.arguments)],
        "workingDir": str(WORKSPACE),
        "env": environment(request),
        "resources": resources(request),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": list(_mounts(request, sources)),
    }


def environment(request: ClusterRequest) -> list[Manifest]:
    """Return the variables of a pod, with the address of pod 0 and this pod's rank.

    Kubeflow Trainer sets address and rank itself, in the same variables.
    """
    named = dict(HOME)
    if request.efa:
        named |= EFA
        if request.hugepages:
            del named["FI_EFA_USE_HUGE_PAGE"]
    if not request.trainjob:
        named |= {
            NODES: str(request.nodes),
            PROCESSES: str(request.processes),
            HOST: f"{request.name}-0.{request.name}",
            HOST_PORT: str(PORT),
        }
    variables: list[Manifest] = [{"name": key, "value": value} for key, value in named.items()]
    if not request.trainjob:
        variables.append({"name": RANK, "valueFrom": {"fieldRef": {"fieldPath": INDEX}}})
    return variables


def resources(request: ClusterRequest) -> Manifest:
    """Return requests equal to limits: the pod is of the class Guaranteed if CPU and memory are given."""
    limits = {
        GPU: request.gpus or "",
        EFA_INTERFACE: request.efa or "",
        HUGE_PAGES: request.hugepages,
        "cpu": request.cpu,
        "memory": request.memory,
    }
    named = {key: str(value) for key, value in limits.items() if value}
    return {"requests": named, "limits": dict(named)} if named else {}


def _volumes(request: ClusterRequest) -> Iterator[Manifest]:
    yield {"name": "workspace", "emptyDir": {}}
    yield {"name": "tmp", "emptyDir": {}}
    yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{request.shared_memory_gib}Gi"}}
    yield {"name": "sources", "configMap": {"name": request.name}}
    for number, claim in enumerate(request.claims):
        yield {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim.name}}
    if request.hugepages:
        yield {"name": "hugepages", "emptyDir": {"medium": "HugePages"}}


def _mounts(request: ClusterRequest, sources: Sequence[Source]) -> Iterator[Manifest]:
    """Yield the mounts; each source is a mount of its own, so that the folder around it stays writable."""
    yield {"name": "workspace", "mountPath": str(WORKSPACE)}
    yield {"name": "tmp", "mountPath": "/tmp"}  # noqa: S108 - of the pod
    yield {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - of the pod
    for source in sources:
        path = str(WORKSPACE / source.path)
        yield {"name": "sources", "mountPath": path, "subPath": source.key, "readOnly": True}
    for number, claim in enumerate(request.claims):
        yield {"name": f"claim-{number}", "mountPath": str(claim.folder)}
    if request.hugepages:
        yield {"name": "hugepages", "mountPath": "/dev/hugepages"}
