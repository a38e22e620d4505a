"""The payload: complete or refused, and the same bytes for the same content."""

import ast
import gzip
import io
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.recipe import lock, payload, vendored, wheels
from gpu_fleet_image.recipe.errors import LockError, PayloadError
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.payload import built

names = st.text("abc/", min_size=1, max_size=6).filter(
    lambda name: not name.startswith("/") and "//" not in name
)
trees = st.dictionaries(names, st.binary(max_size=20), max_size=5)


RECIPE = payload.PROJECT / "image/gpu_fleet_image/recipe"
SWEEP = "gpu_fleet_image/controllers/sweep"


@pytest.fixture
def steps(tmp_path):
    return shutil.copytree(RECIPE / "steps", tmp_path / "steps")


def test_the_payload_carries_recipe_lists_and_python_each_by_a_pattern_and_programs_executable():
    files = payload.assemble()
    with tarfile.open(fileobj=io.BytesIO(payload.tarball(files))) as archive:
        modes = {entry.name: entry.mode for entry in archive}

    assert {"provision.sh", "steps/10-base.sh", "versions/debian-12.tsv", "packages/ubuntu-24.04.tsv"} <= set(
        files
    )
    assert {"python/gpu_fleet/__main__.py", "examples/digits.toml"} <= set(files)
    assert "python/gpu_fleet_image/instance/agent/loop.py" in files
    assert not [name for name in files if name.startswith("python/gpu_fleet_stacks") or "__pycache__" in name]
    folders = ("steps/", "rootfs/", "wheels/", "keys/", "python/", "examples/")
    assert [name for name in files if name.startswith(folders) and not payload.is_own(name)] == []
    assert modes["provision.sh"] == 0o755
    assert modes["rootfs/usr/libexec/gpu-fleet/scratch"] == 0o755
    assert modes["rootfs/etc/systemd/system/scratch.service"] == 0o644


def turn(steps):
    (steps / "ORDER").write_text("\n".join(reversed((steps / "ORDER").read_text().splitlines())))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda steps: (steps / "40-scratch.sh").unlink(), r"40-scratch\.sh is missing"),
        (lambda steps: (steps / "41-stray.sh").write_text(""), r"41-stray\.sh is not in ORDER"),
        (turn, "in the order of their numbers"),
    ],
)
def test_steps_and_their_order_agree(steps, spoil, message):
    spoil(steps)

    with pytest.raises(PayloadError, match=message):
        payload.check_steps(steps)


def test_every_group_a_step_installs_is_in_the_package_map():
    listed = [payload.packages_tsv(RECIPE / "packages.toml", base) for base in ("ubuntu-24.04", "debian-12")]
    groups = {line.split("\t")[0] for text in listed for line in text.splitlines()}
    asked = set()
    for step in (RECIPE / "steps").glob("*.sh"):
        words = [line.split() for line in step.read_text().splitlines()]
        asked |= {line[1] for line in words if line[:1] in (["install_group"], ["install_locked"])}

    assert asked == groups


@given(trees, names, st.binary(max_size=20))
def test_the_same_content_gives_the_same_tarball_and_digest_and_any_change_another(tree, name, content):
    turned, changed = dict(reversed(tree.items())), tree | {name: content}

    assert payload.tarball(tree) == payload.tarball(turned)
    assert payload.digest(tree) == payload.digest(turned)
    assert (payload.digest(changed) == payload.digest(tree)) == (changed == tree)


def test_every_packed_module_finds_those_it_imports():
    sources = {
        name.removeprefix("python/"): content
        for name, content in payload.assemble().items()
        if name.startswith("python/") and name.endswith(".py")
    }
    known = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in sources}
    missing = [
        f"{name}: {node.module}"
        for name, content in sources.items()
        for node in ast.walk(ast.parse(content))
        if isinstance(node, ast.ImportFrom)
        and str(node.module).split(".")[0] in ("gpu_fleet_image", "gpu_fleet", "gpu_fleet_jobs")
        if node.module not in known
    ]

    assert missing == []


def test_the_vendored_packages_are_those_of_the_virtual_environments():
    own = vendored.entries(vendored.LIST.read_text())

    for base in lock.BASES:
        everything = vendored.entries(wheels.list_of(base).read_text())
        assert {name: everything[name] for name in own} == own


def test_only_alibaba_clouds_instances_carry_its_sdk_and_what_is_compiled_runs_on_every_python():
    aws, alicloud = (vendored.packages(cloud) for cloud in ("aws", "alicloud"))

    sdks = [[name for name in packages if name.startswith("aliyunsdkcore/")] for packages in (aws, alicloud)]
    assert [bool(sdk) for sdk in sdks] == [False, True]
    compiled = [name for name in alicloud if name.endswith((".so", ".pyd", ".dylib"))]
    assert compiled == ["psutil/_psutil_linux.abi3.so"]


def test_a_wheel_in_the_cache_that_is_another_is_refused(tmp_path):
    digest = next(iter(vendored.entries(vendored.LIST.read_text()).values()))
    listing = tmp_path / "list.txt"
    listing.write_text(f"six==1.17.0 --hash=sha256:{digest}\n")
    (tmp_path / f"{digest}.whl").write_bytes(b"tampered")

    with pytest.raises(LockError, match="not the six that"):
        vendored.wheels(tmp_path, listing)


@given(st.binary(max_size=200))
def test_what_is_compressed_is_the_tarball_and_says_no_time(tar):
    packed = payload.compressed(tar)

    assert gzip.decompress(packed) == tar
    assert packed[4:8] == bytes(4)


def test_a_payload_stays_small():
    """Each program run of the tests uploads it, and each first boot waits for it."""
    assert len(payload.compressed(payload.tarball(payload.assemble(target="alicloud")))) < 8_000_000


def test_another_zlib_gives_other_bytes_and_the_same_name(tmp_path, monkeypatch):
    monkeypatch.setattr(built, "FOLDER", tmp_path)
    ours = built.built.__wrapped__(Cloud.AWS)
    before = ours.path.read_bytes()
    ours.path.unlink()
    own = payload.zlib.compressobj
    monkeypatch.setattr(payload.zlib, "compressobj", lambda **options: own(**options | {"level": 1}))

    theirs = built.built.__wrapped__(Cloud.AWS)

    assert theirs.path.read_bytes() != before
    assert theirs.object_key == ours.object_key


@pytest.fixture
def checkout(tmp_path):
    """A small project: two files that belong to it, and what else lies about in a folder."""
    folder = tmp_path / "checkout" / "image" / SWEEP
    folder.mkdir(parents=True)
    for name in ("own.py", "README.md", ".env", "secret.key", "notes.odt", "draft.py"):
        (folder / name).write_text(name)
    return tmp_path / "checkout"


def taken(checkout):
    return set(payload._below(checkout, f"image/{SWEEP}", f"python/{SWEEP}"))


def test_of_a_checkout_only_what_git_tracks_is_packed_and_is_there(checkout):
    git = ["git", "-C", str(checkout)]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", *(f"image/{SWEEP}/{name}" for name in ("own.py", "README.md"))], check=True)

    assert taken(checkout) == {f"python/{SWEEP}/own.py", f"python/{SWEEP}/README.md"}
    (checkout / f"image/{SWEEP}/README.md").unlink()
    assert taken(checkout) == {f"python/{SWEEP}/own.py"}


def test_a_checkout_that_git_cannot_read_is_refused(checkout):
    (checkout / ".git").write_text("gitdir: /nowhere\n")

    with pytest.raises(PayloadError, match="git does not list its files"):
        taken(checkout)


def test_without_git_only_known_kinds_of_files_go_along(checkout):
    names = {name.rpartition("/")[2] for name in taken(checkout)}

    assert names == {"own.py", "README.md", "draft.py"}
