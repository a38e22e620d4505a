"""Validation of a manifest by the schema of its kind; unknown fields are refused, as `kubectl` does.

Kubernetes' own kinds: the schemas of `kubernetes-validate --strict`, of two versions. Custom resources: what
their definitions say, and what they hold of Kubernetes' own objects against Kubernetes' schemas.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from tests.training.kubernetes.manifests.excerpt import KINDS, KUBERNETES

HERE = Path(__file__).parent
CUSTOM = {
    "trainer.kubeflow.org/v1alpha1": "trainer.json",
    "kueue.x-k8s.io/v1beta2": "kueue.json",
}


def problems(manifest: dict[str, Any], version: str = KUBERNETES[-1]) -> list[str]:
    """Return the mistakes in an object, each as "place: mistake"."""
    api, kind = manifest["apiVersion"], manifest["kind"]
    if api not in CUSTOM:
        return of_kubernetes(kind, manifest, version)
    found = _listed(_custom(CUSTOM[api], kind), manifest)
    if kind == "TrainingRuntime":
        for job in manifest["spec"]["template"]["spec"]["replicatedJobs"]:
            found += of_kubernetes("JobTemplateSpec", job["template"], version)
    if kind == "Workload":
        for pods in manifest["spec"]["podSets"]:
            found += of_kubernetes("PodTemplateSpec", pods["template"], version)
    return found


def of_kubernetes(kind: str, content: dict[str, Any], version: str) -> list[str]:
    """Return the mistakes in an object of one of Kubernetes' own kinds, or in a part of one."""
    return _listed(_kubernetes(version, KINDS.get(kind, f"io.k8s.api.core.v1.{kind}")), content)


def _listed(validator: Draft202012Validator, content: dict[str, Any]) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)]


@cache
def _kubernetes(version: str, name: str) -> Draft202012Validator:
    definitions = json.loads((HERE / f"kubernetes-{version}.json").read_text())
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions})


@cache
def _custom(file: str, kind: str) -> Draft202012Validator:
    schema = json.loads((HERE / file).read_text())[kind]
    schema["properties"]["metadata"] = {"type": "object"}
    return Draft202012Validator(_strict(schema))


def _strict(schema: Any) -> Any:
    """Make unknown fields a mistake; a server would drop them."""
    if not isinstance(schema, dict):
        return schema
    closed = {key: _strict(value) for key, value in schema.items()}
    if "properties" in schema:
        closed["properties"] = {key: _strict(value) for key, value in schema["properties"].items()}
        closed.setdefault("additionalProperties", False)
    return closed
