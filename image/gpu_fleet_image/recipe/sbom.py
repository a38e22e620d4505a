"""Write the image's bill of materials (CycloneDX 1.5) and its manifest; runs inside it, on the stdlib.

Package URLs are canonical (https://github.com/package-url/purl-spec; a test parses them with its library). A
Debian package's URL has the release and the source package, with which scanners find advisories.
"""

import argparse
import json
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

# The identifiers' namespace: the same content gives the same serial number.
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "gpu-fleet.image")
_DPKG_FORMAT = (
    "${Package}\t${Version}\t${Architecture}\t${source:Package}\t${source:Version}\t${db:Status-Status}\n"
)
# The day of the distribution's archive; steps on a cloud write this file (lib.sh, archive_day).
ARCHIVE_DAY = Path("/usr/share/gpu-fleet/archive-day")
_LIST_WHEELS = """
from importlib.metadata import distributions
for found in distributions():
    print(found.metadata["Name"], found.version, sep="\\t")
"""

Component = dict[str, Any]


def debian_components(listing: str, base: str) -> list[Component]:
    """Return the installed packages of a ``dpkg-query`` listing in ``_DPKG_FORMAT`` on a base."""
    distribution = base.split("-", maxsplit=1)[0]
    packages = []
    for name, version, architecture, source, source_version, status in map(_cells, listing.splitlines()):
        if status != "installed":
            continue
        url = f"pkg:deb/{distribution}/{_quoted(name)}@{_quoted(version)}?arch={architecture}&distro={base}"
        if (source, source_version) != (name, version):
            upstream = source if source_version == version else f"{source}@{source_version}"
            url += f"&upstream={_quoted(upstream)}"
        packages.append(_component(name, version, url))
    return packages


def python_components(listing: str) -> list[Component]:
    """Return the packages of a virtual environment, from ``name<tab>version`` lines."""
    rows = sorted({tuple(_cells(line)) for line in listing.splitlines()})
    return [
        _component(name, version, f"pkg:pypi/{_quoted(name.lower().replace('_', '-'))}@{_quoted(version)}")
        for name, version in rows
    ]


def _cells(line: str) -> list[str]:
    return line.split("\t")


def _quoted(text: str) -> str:
    """Quote a part of a package URL; the canonical form keeps a colon, for example of an epoch."""
    return quote(text, safe=":")


def _component(name: str, version: str, url: str) -> Component:
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def document(components: Iterable[Component], properties: Mapping[str, str]) -> dict[str, Any]:
    """Return a CycloneDX document; its serial number follows from its content, and it has no time."""
    listed = sorted(components, key=lambda component: component["bom-ref"])
    content = json.dumps([listed, dict(properties)], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "operating-system",
                "name": "gpu-fleet",
                "version": properties["payload_sha256"][:12],
            },
            "properties": [{"name": f"gpu-fleet:{key}", "value": value} for key, value in properties.items()],
        },
        "components": listed,
    }


def manifest(
    properties: Mapping[str, str], components: Iterable[Component], kernels: Iterable[str]
) -> dict[str, Any]:
    """Return the main facts for an operator or a test: target, base, payload, kernels, main versions."""
    telling = (
        *(
            "nvidia",
            "libcuda",
            "linux-modules-nvidia",
            "datacenter-gpu-manager",
            "nvlsm",
            "efa",
            "libfabric",
            "erdma",
        ),
        *("torch", "transformers", "boto3", "cloud-init"),
    )
    versions = {
        component["name"]: component["version"]
        for component in components
        if component["name"].startswith(telling)
    }
    return {**properties, "kernels": sorted(kernels), "versions": dict(sorted(versions.items()))}


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Collect the packages, and write ``sbom.cdx.json`` and ``manifest.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--payload", type=Path, required=True, help="file with the payload's SHA-256")
    parser.add_argument("--environment", type=Path, required=True, help="virtual environment")
    parser.add_argument("--folder", type=Path, required=True, help="folder of both files")
    options = parser.parse_args()
    components = debian_components(
        _output("dpkg-query", "--show", "--showformat", _DPKG_FORMAT), options.base
    )
    components += python_components(_output(str(options.environment / "bin" / "python"), "-c", _LIST_WHEELS))
    properties = {
        "target": options.target,
        "base": options.base,
        "payload_sha256": options.payload.read_text().strip(),
    }
    if ARCHIVE_DAY.is_file():
        properties["archive_day"] = ARCHIVE_DAY.read_text().strip()
    modules = Path("/lib/modules")
    kernels = [path.name for path in modules.iterdir()] if modules.is_dir() else []
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, content in {
        "sbom.cdx.json": document(components, properties),
        "manifest.json": manifest(properties, components, kernels),
    }.items():
        (options.folder / name).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
