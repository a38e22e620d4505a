"""Pods of a manifest as processes of this computer: command, arguments, variables and volumes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[4]
INDEX = "batch.kubernetes.io/job-completion-index"


class Pod:
    """One pod of an Indexed Job.

    `/workspace` is a folder; files of the ConfigMap are laid into it and claims are links, as the mounts say.
    Names of pods stand for 127.0.0.1.
    """

    def __init__(
        self,
        manifests: list[dict[str, Any]],
        index: int,
        folder: Path,
        claims: dict[str, Path],
        *,
        port: int,
        stderr: int,
    ) -> None:
        files, _, job = manifests
        spec = job["spec"]["template"]["spec"]
        container = spec["containers"][0]
        self._folder, self._annotations = folder, {INDEX: str(index)}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in container["volumeMounts"]:
            self._mount(mount, volumes[mount["name"]], files["data"], claims)
        hosts = {
            f"{job['metadata']['name']}-{n}.{spec['subdomain']}" for n in range(job["spec"]["completions"])
        }
        environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(ROOT / "training")  # the image has it by a .pth
        for variable in container["env"]:
            value = self._value(variable)
            environment[variable["name"]] = "127.0.0.1" if value in hosts else value
        assert environment["PET_MASTER_PORT"] == "29400"
        environment["PET_MASTER_PORT"] = str(port)
        self.process = subprocess.Popen(
            [*container["command"], *(argument.replace("$$", "$") for argument in container["args"])],
            cwd=self._place(container["workingDir"]),
            env=environment,
            stderr=stderr,
            stdout=subprocess.DEVNULL,
        )

    def end(self) -> None:
        """Kill all of its processes, as the end of a container does."""
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
            self.process.kill()
        self.process.wait()

    def _place(self, path: str) -> Path:
        return self._folder / path.removeprefix("/")

    def _mount(
        self, mount: dict[str, Any], volume: dict[str, Any], files: dict[str, str], claims: dict[str, Path]
    ) -> None:
        place = self._place(mount["mountPath"])
        place.parent.mkdir(parents=True, exist_ok=True)
        if "configMap" in volume:
            place.write_text(files[mount["subPath"]])
        elif "persistentVolumeClaim" in volume:
            place.symlink_to(claims[volume["persistentVolumeClaim"]["claimName"]])
        else:
            place.mkdir(parents=True)

    def _value(self, variable: dict[str, Any]) -> str:
        if "value" in variable:
            return str(variable["value"])
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        return self._annotations[path.removeprefix("metadata.annotations['").removesuffix("']")]


def action(policy: dict[str, Any], status: int, *, disrupted: bool = False) -> str:
    """Return the action of a Job for a failed pod: that of the first rule that matches."""
    for rule in policy["rules"]:
        codes = rule.get("onExitCodes")
        listed = codes is not None and status in codes["values"]
        if codes is not None and status != 0 and listed == (codes["operator"] == "In"):
            return str(rule["action"])
        if disrupted and "onPodConditions" in rule:
            return str(rule["action"])
    return "Count"
