"""Versions and locks: each version is written once, and each lock fits its requirements, with hashes.

`make lock` removes a finding in a lock.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator

import environment
from checks.sources import Checkout, Finding, NothingToCheckError, line_of
from gpu_fleet_image.recipe.wheels import CPU_TORCH, PYTHONS, pins

REQUIREMENTS = sorted(path for paths in environment.REQUIREMENTS.values() for path in paths)
LOCKS = (*environment.REQUIREMENTS, environment.TORCH_PYPI, environment.TORCH_CPU)
LIBRARIES, DATA = "tests/libraries/requirements", "pyproject.toml"
NAME = re.compile(r"^([\w.-]+)", re.MULTILINE)


def requirements(checkout: Checkout) -> Iterator[Finding]:
    """Check that each requirements file has a lock, and that each package in it has one version in all."""
    there = [path for path in checkout.paths if path.rpartition("/")[2] == "requirements.txt"]
    for path in {*there} ^ {*REQUIREMENTS}:
        yield Finding(path, 1, "is not there, or .ci/environment.py locks it nowhere")
    written = Counter(name for path in REQUIREMENTS for name in pins(checkout.text(path)))
    for path in REQUIREMENTS:
        text = checkout.text(path)
        for hit in NAME.finditer(re.sub(r"^-.*", "", text, flags=re.MULTILINE)):
            if written[(name := hit[1].lower())] != 1:
                yield Finding(path, line_of(text, hit[1]), f"{name} has {written[name]} versions, not one")


def locks(checkout: Checkout) -> Iterator[Finding]:
    """Find locks of other requirements, and locked packages without a hash."""
    for lock, sources in environment.REQUIREMENTS.items():
        have = pins(checkout.text(lock)) | locked(checkout)
        for path in sources:
            for name, version in pins(checkout.text(path)).items():
                if have.get(name) != version:
                    yield Finding(lock, 1, f"has {name} {have.get(name)}, {path} {version}: run `make lock`")
    for lock in LOCKS:
        yield from without_hash(lock, checkout.text(lock))


def locked(checkout: Checkout) -> dict[str, str]:
    """Return name -> version of the development environment."""
    return pins(checkout.text(environment.LOCK)) | pins(checkout.text(environment.TORCH_PYPI))


def without_hash(lock: str, text: str) -> Iterator[Finding]:
    """Find packages of a lock without a hash."""
    blocks = list(re.finditer(r"^[a-z0-9].*(?:\n[ #].*)*", text, re.MULTILINE))
    if not blocks:
        yield Finding(lock, 1, "locks no package")
    for block in blocks:
        if "--hash=sha256:" not in block[0]:
            yield Finding(lock, line_of(text, block.start()), f"{block[0].split()[0]} has no hash")


def torch(checkout: Checkout) -> Iterator[Finding]:
    """Check that all builds of torch have one version."""
    wanted = f"{locked(checkout).get('torch')}+cpu"
    for version in set(re.findall(r"^torch==(\S+)", checkout.text(CPU_TORCH), re.MULTILINE)) or {"none"}:
        if version != wanted:
            yield Finding(CPU_TORCH, 1, f"has torch {version}, {environment.TORCH_PYPI} another")


def wheels(checkout: Checkout) -> Iterator[Finding]:
    """Find wheels of an image in versions that no test uses; a lock may have one for each Python."""
    tested = "".join(checkout.text(lock) for lock in (environment.LOCK, environment.TORCH_PYPI))
    for listing in (f"image/gpu_fleet_image/recipe/wheels/{base}.txt" for base in PYTHONS):
        text = checkout.text(listing)
        if not (carried := pins(text)):
            yield Finding(listing, 1, "names no wheel")
        for name, version in carried.items():
            if f"\n{name}=={version.removesuffix('+cpu')} " not in tested:
                yield Finding(listing, line_of(text, f"{name}=="), f"{name} {version} is not tested")


def beside_the_locks(checkout: Checkout) -> Iterator[Finding]:
    """Check that the versions repeated in pyproject.toml are the tested ones; tests use `tests.pins`."""
    project = tomllib.loads(checkout.text(DATA))
    extras = project.get("project", {}).get("optional-dependencies", {})
    if not (data := pins("\n".join(extras.get("data", ())))):
        raise NothingToCheckError(f"{DATA}: no version of the extra data")
    tested = pins(checkout.text(f"{LIBRARIES}.lock"))
    for name, version in data.items():
        if tested.get(name) != version:
            yield Finding(DATA, 1, f"the extra data has {name} {version}, tests {tested.get(name)}")
    built_by = project.get("build-system", {}).get("requires", ())
    for name, version in pins("\n".join((*extras.get("platform", ()), *built_by))).items():
        if locked(checkout).get(name) != version:
            yield Finding(DATA, 1, f"asks for {name} {version}, the lock has {locked(checkout).get(name)}")
    for path in checkout.files("tests", suffix=".py"):
        for name in pins(checkout.text(f"{LIBRARIES}.txt")):
            if f'"{name}==' in checkout.text(path):
                yield Finding(
                    path, line_of(checkout.text(path), f'"{name}=='), f"pins {name}: ask tests.pins"
                )


CHECKS = (requirements, locks, torch, wheels, beside_the_locks)
