"""Extraction of the schemas beside this file from their projects; run by hand when a version is added.

    pip download --no-deps kubernetes-validate==1.37.0
    python -m tests.training.kubernetes.manifests.excerpt WHEEL TRAINER KUEUE

TRAINER and KUEUE are clones of github.com/kubeflow/trainer and github.com/kubernetes-sigs/kueue. Texts for
people are left out; where a custom resource holds a whole Kubernetes object, so is its schema, and the
tests hold that object against Kubernetes' own.
"""

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
KUBERNETES = ("1.33.0", "1.37.0")
KINDS = {
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "Job": "io.k8s.api.batch.v1.Job",
    "JobTemplateSpec": "io.k8s.api.batch.v1.JobTemplateSpec",
    "PersistentVolumeClaim": "io.k8s.api.core.v1.PersistentVolumeClaim",
    "Service": "io.k8s.api.core.v1.Service",
    "ServiceAccount": "io.k8s.api.core.v1.ServiceAccount",
}
TRAINER, KUEUE = "v2.3.0", "v0.19.2"
# Custom resource -> its file, and the places in its spec that hold an object of Kubernetes' own.
CUSTOM = {
    "TrainJob": ("manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml", ["runtimePatches"]),
    "TrainingRuntime": (
        "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
        ["template.spec.replicatedJobs.template", "template.spec.volumeClaimPolicies", "podGroupPolicy"],
    ),
    "LocalQueue": ("config/components/crd/bases/kueue.x-k8s.io_localqueues.yaml", []),
    "Workload": ("config/components/crd/bases/kueue.x-k8s.io_workloads.yaml", ["podSets.template"]),
}


def of_kubernetes(wheel: zipfile.ZipFile, version: str) -> dict[str, Any]:
    """Return the strict definitions of KINDS and of everything to which they refer."""
    folder = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict"
    known = json.loads(wheel.read(f"{folder}/_definitions.json"))["$defs"]
    wanted, kept = list(KINDS.values()), {}
    while wanted:
        name = wanted.pop()
        if name not in kept:
            kept[name] = plain(known[name])
            wanted += references(known[name])
    return dict(sorted(kept.items()))


def references(schema: Any) -> Iterator[str]:
    """Yield the names of the definitions to which a schema refers."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def of_custom(clone: str, tag: str, kind: str) -> dict[str, Any]:
    """Return the schema of a custom resource in its stored version, without the status."""
    file, inner = CUSTOM[kind]
    said = subprocess.run(["git", "-C", clone, "show", f"{tag}:{file}"], capture_output=True, check=True)
    version = next(v for v in yaml.safe_load(said.stdout)["spec"]["versions"] if v["storage"])
    schema = plain(version["schema"]["openAPIV3Schema"])
    schema["properties"].pop("status", None)
    for place in inner:
        *parents, last = place.split(".")
        found = schema["properties"]["spec"]
        for name in parents:
            found = found["properties"][name]
            found = found.get("items", found)
        found["properties"][last] = {}
    return {"x-version": version["name"], **schema}


def plain(schema: Any) -> Any:
    """Return a schema without its descriptions; its references point into the same file."""
    if isinstance(schema, dict):
        return {
            key: f"#/$defs/{value.rpartition('/')[2]}" if key == "$ref" else plain(value)
            for key, value in schema.items()
            if not (key == "description" and isinstance(value, str))
        }
    return [plain(value) for value in schema] if isinstance(schema, list) else schema


def write(name: str, entries: dict[str, Any]) -> None:
    """Write one entry a line, so that a new version gives a readable diff."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in entries.items()]
    (HERE / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(wheel: str, trainer: str, kueue: str) -> None:
    """Write every excerpt."""
    with zipfile.ZipFile(wheel) as opened:
        for version in KUBERNETES:
            write(f"kubernetes-{version}.json", of_kubernetes(opened, version))
    write(
        "trainer.json", {kind: of_custom(trainer, TRAINER, kind) for kind in ("TrainJob", "TrainingRuntime")}
    )
    write("kueue.json", {kind: of_custom(kueue, KUEUE, kind) for kind in ("LocalQueue", "Workload")})


if __name__ == "__main__":
    main(*sys.argv[1:])
