"""The manifests of a run: an Indexed Job and its headless Service, or a TrainJob and its runtime.

https://kubernetes.io/docs/concepts/workloads/controllers/job/
https://www.kubeflow.org/docs/components/trainer/operator-guides/runtime/
"""

import re
from collections.abc import Sequence

import yaml

from gpu_fleet.core import exit_codes
from gpu_fleet_jobs.kubernetes.pod import Manifest, template
from gpu_fleet_jobs.kubernetes.request import ClusterRequest
from gpu_fleet_jobs.kubernetes.sources import Source
from gpu_fleet_jobs.launch.rendezvous import PORT

JOB_LABEL = "batch.kubernetes.io/job-name"  # the Job gives it to its pods
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
TRAINER_API = "trainer.kubeflow.org"
STEP_LABEL, FRAMEWORK_LABEL = f"{TRAINER_API}/trainjob-ancestor-step", f"{TRAINER_API}/framework"
CONTAINER = "trainer"
NODE = "node"  # Kubeflow Trainer looks for the replicated job and the container by this name


def render(request: ClusterRequest, sources: Sequence[Source]) -> list[Manifest]:
    """Return the objects in the order in which a cluster should get them."""
    files = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(request),
        "immutable": True,  # a replaced pod gets the same files as the others
        "data": {source.key: source.text for source in sources},
    }
    if request.trainjob:
        return [files, _runtime(request, sources), _train_job(request)]
    return [files, _service(request), _job(request, sources)]


def failure_policy(container: str) -> Manifest:
    """Return the rules for exit_codes as a Job's policy: the first rule that fits a failed pod counts."""
    final = [exit_codes.USAGE, exit_codes.FAILED_FOR_GOOD]
    known = [*final, exit_codes.STOPPED]

    def on(operator: str, values: list[int]) -> Manifest:
        return {"onExitCodes": {"containerName": container, "operator": operator, "values": sorted(values)}}

    return {
        "rules": [
            {"action": "FailJob", **on("In", final)},
            {"action": "Ignore", **on("In", [exit_codes.STOPPED])},  # saved: run again without counting
            {
                "action": "Ignore",  # drained, preempted or evicted: not a failure of the run
                "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
            },
            {"action": "Count", **on("NotIn", known)},
        ]
    }


def _metadata(request: ClusterRequest, *, queued: bool = False) -> Manifest:
    """Return the metadata of an object; `queued` adds the queue, for the one object that Kueue admits."""
    metadata: Manifest = {"name": request.name}
    if request.namespace:
        metadata["namespace"] = request.namespace
    metadata["labels"] = {"app.kubernetes.io/name": request.name, "app.kubernetes.io/managed-by": "gpu-fleet"}
    if queued and request.queue:
        metadata["labels"][QUEUE_LABEL] = request.queue
    return metadata


def _service(request: ClusterRequest) -> Manifest:
    """Return the Service that gives each pod a DNS name, even before it is ready: pod 0 is NAME-0.NAME."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: request.name},
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }


def _job(request: ClusterRequest, sources: Sequence[Source]) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(request, queued=True),
        "spec": {
            **({"suspend": True} if request.queue else {}),
            "completionMode": "Indexed",
            "completions": request.nodes,
            "parallelism": request.nodes,
            **_retries(request, CONTAINER),
            "template": template(request, sources, CONTAINER),
        },
    }


def _retries(request: ClusterRequest, container: str) -> Manifest:
    """Return the retry policy, counted per index: one cause may end all pods at once.

    The run needs every index, so one failed index fails the Job.
    """
    return {
        "backoffLimitPerIndex": request.retries,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "Failed",  # never two pods of one index at a time
        "podFailurePolicy": failure_policy(container),
    }


def _runtime(request: ClusterRequest, sources: Sequence[Source]) -> Manifest:
    """Return the runtime from which Kubeflow Trainer makes a JobSet.

    The Trainer adds the variables of torchrun, the headless Service and the number of pods.
    """
    job = {
        "completionMode": "Indexed",
        **_retries(request, NODE),
        "template": template(request, sources, NODE),
    }
    labels = {STEP_LABEL: "trainer"}
    metadata = _metadata(request)
    metadata["labels"][FRAMEWORK_LABEL] = "torch"
    return {
        "apiVersion": f"{TRAINER_API}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata,
        "spec": {
            "mlPolicy": {"numNodes": request.nodes, "torch": {}},
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {"name": NODE, "template": {"metadata": {"labels": labels}, "spec": job}}
                    ]
                }
            },
        },
    }


def _train_job(request: ClusterRequest) -> Manifest:
    return {
        "apiVersion": f"{TRAINER_API}/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(request, queued=True),
        "spec": {
            **({"suspend": True} if request.queue else {}),
            "runtimeRef": {"apiGroup": TRAINER_API, "kind": "TrainingRuntime", "name": request.name},
            "trainer": {
                "numNodes": request.nodes,
                "numProcPerNode": request.processes,
            },
        },
    }


class _Dumper(yaml.SafeDumper):
    """Dumper that writes texts of several lines as blocks, and no anchors."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)
# PyYAML reads 1e-3 and y as text, and the Kubernetes API does not: quote text that may read as a number.
_Dumper.add_implicit_resolver("!number-like", re.compile(r"[-+.]*[0-9]|[yYnN]$"), list("-+.0123456789yYnN"))


def as_yaml(manifests: Sequence[Manifest]) -> str:
    """Return the objects as one YAML stream for `kubectl`."""
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=200)
