"""The baked image, made once for all tests that ask for it and kept under build/."""

import pytest

from gpu_fleet_image.recipe import bake, build, build_requirements, payload
from gpu_fleet_image.recipe.errors import RequirementError
from tests.image import plain_disk
from tests.image.recipe import archives
from tests.image.recipe.recipe import NAMESPACES, report
from tests.ran import ran

# A root file system, a disk and an archive made of it, and what a boot writes.
NEEDED_GIB = 12


@pytest.fixture(scope="module")
def keys():
    """A maker's key, and a stranger's."""
    made = [archives.new_key(person) for person in ("maker", "stranger")]
    yield made
    for key in made:
        archives.forget(key)


@pytest.fixture(scope="session")
def bakeable():
    """Skips, with the reason, where this computer cannot bake."""
    try:
        bake.check_computer(payload.PROJECT, NEEDED_GIB)
        build_requirements.install((*build_requirements.BAKE, *build_requirements.BOOT))
    except RequirementError as error:
        pytest.skip(f"no bake here: {error}")
    probe = ran([*NAMESPACES, "true"])
    if probe.returncode:
        pytest.skip(f"no bake here: no namespaces on this computer: {probe.stderr.strip()}")


@pytest.fixture(scope="session")
def files(bakeable):
    """The payload, read once: everything these tests bake is made from the same."""
    return build.inputs()


@pytest.fixture(scope="session")
def baked(files):
    """The report of the virtual machine's root file system."""
    return build.rootfs(files, build.OUTPUT, report)


@pytest.fixture(scope="session")
def root(baked):
    return baked.folder / "rootfs"


@pytest.fixture(scope="session")
def disk(files, baked):
    """The folder with disk, kernel and initrd."""
    return build.qemu(files, build.OUTPUT, report).folder


@pytest.fixture(scope="session")
def plain(bakeable):
    """A plain Debian's disk, with nothing of ours."""
    return plain_disk.made(build.OUTPUT, report)


@pytest.fixture(scope="session")
def inside(root):
    """Runs a command inside the root file system; what it writes to /tmp and /run is forgotten."""
    kinds = {"proc": "proc", "run": "tmpfs", "tmp": "tmpfs", "dev/shm": "tmpfs"}
    mounts = "".join(f"mount -t {kind} {kind} {root}/{place}; " for place, kind in kinds.items())
    own = [*NAMESPACES, "bash", "-e", "-c"]

    def run(command, timeout_s=300):
        done = ran(
            [*own, f'{mounts} hostname localhost; exec chroot {root} /bin/bash -e -c "$0"', command],
            timeout=timeout_s,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8"},
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run
