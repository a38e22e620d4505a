"""What a bake is packed into: disk, container, list of wheels, bill of materials."""

import hashlib
import json
import os
import shutil
from dataclasses import fields
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packageurl import PackageURL

from gpu_fleet_image.recipe import disk, lock, oci, sbom, wheels
from gpu_fleet_image.recipe.errors import BakeError, LockError
from gpu_fleet_jobs.kubernetes.pod import HOME
from gpu_fleet_jobs.kubernetes.request import ClusterRequest
from tests.image.recipe import archives


def test_a_root_without_a_kernel_makes_no_disk_and_of_several_the_newest_boots(tmp_path):
    (tmp_path / "boot").mkdir()

    with pytest.raises(BakeError, match="no kernel with an initrd"):
        disk.make(tmp_path, tmp_path, 0)
    for release in ("6.1.0-9-cloud-amd64", "6.1.0-50-cloud-amd64"):
        (tmp_path / "boot" / f"vmlinuz-{release}").touch()
        (tmp_path / "boot" / f"initrd.img-{release}").touch()

    assert disk.newest_kernel(tmp_path) == "6.1.0-50-cloud-amd64"


def test_the_container_is_the_same_for_the_same_files_and_holds_them_and_runs_as_rendered_pods_do(tmp_path):
    """Not as root, and where it may write."""
    root, unpacked = tmp_path / "root", tmp_path / "unpacked"
    (root / "opt").mkdir(parents=True)
    (root / "opt/program").write_text("#!/bin/sh\n")
    (root / "opt/link").symlink_to("program")

    one, other = (
        oci.make(root, tmp_path / name, {"payload": "x"}, 1_764_000_000) for name in ("a.tar", "b.tar")
    )

    assert one.read_bytes() == other.read_bytes()
    shutil.unpack_archive(one, unpacked, "tar", filter="data")

    def blob(descriptor):
        return unpacked / "blobs" / descriptor["digest"].replace(":", "/")

    index = json.loads((unpacked / "index.json").read_text())
    manifest = json.loads(blob(index["manifests"][0]).read_text())
    shutil.unpack_archive(blob(manifest["layers"][0]), tmp_path / "layer", "gztar", filter="data")
    assert (tmp_path / "layer/opt/link").read_text() == "#!/bin/sh\n"
    config = json.loads(blob(manifest["config"]).read_text())["config"]
    assert config["Entrypoint"][-1] == "gpu_fleet"
    rendered = next(field.default for field in fields(ClusterRequest) if field.name == "user")
    assert rendered > 0
    assert config["User"] == f"{rendered}:{rendered}"  # by number: kubelet reads no names
    environment = dict(entry.split("=", 1) for entry in config["Env"])
    assert {name: environment[name] for name in HOME} == HOME
    assert config["WorkingDir"] == HOME["HOME"]  # one that it may write to


def test_a_list_of_wheels_is_of_the_same_requirements_or_refused(tmp_path):
    listing = tmp_path / "list.txt"
    listing.write_text("torch==2.13.0+cpu --hash=sha256:0\nnumpy==2.0 --hash=x\n")
    why = r"torch==2\.14\.0 \(the list has 2\.13\.0\+cpu\).*python -m gpu_fleet_image\.recipe\.wheels"

    wheels.check_fresh(listing, ["torch==2.13.0\n# a remark\n"])
    with pytest.raises(LockError, match=why):
        wheels.check_fresh(listing, ["torch==2.14.0\n"])


def test_the_clouds_torch_brings_cuda_and_the_local_one_is_the_cpu_build_of_its_python():
    cloud, local = (wheels.pins(wheels.list_of(base).read_text()) for base in ("ubuntu-24.04", "debian-12"))
    text = (wheels.PROJECT / wheels.CPU_TORCH).read_text()

    assert cloud["torch"] == local["torch"].removesuffix("+cpu")
    assert "nvidia-nccl-cu13" in cloud.keys() - local.keys()
    assert wheels.cpu_torch(text, (3, 11)) in wheels.list_of("debian-12").read_text()
    with pytest.raises(LockError, match=r"no torch for Python 3\.10"):
        wheels.cpu_torch(text, (3, 10))


def test_the_tools_lie_on_top_of_the_trainer_at_its_versions():
    listed, trainer = wheels.list_of("tools").read_text(), wheels.list_of(wheels.TOOLS_BASE).read_text()

    wheels.check_fresh(wheels.list_of("tools"), [wheels.TOOLS.read_text()])
    assert {"jupyterlab", "ipykernel", "uv"} <= wheels.pins(listed).keys()
    assert not wheels.pins(listed).keys() & wheels.pins(trainer).keys()
    assert len(wheels.hashes(listed)) == len(wheels.pins(listed))


def test_tools_are_resolved_at_the_trainers_versions(tmp_path, monkeypatch):
    """And what the trainer has is left out: it lies below."""
    asked = []

    def resolve(base, requirements, constraints):
        asked.append((base, requirements, constraints[0].read_text()))
        return [packaged(f"{name}-1-py3-none-any.whl", name=name) for name in ("numpy", "uv")]

    lists = {name: tmp_path / f"{name}.txt" for name in ("tools", wheels.TOOLS_BASE)}
    lists[wheels.TOOLS_BASE].write_text("numpy==1 --hash=sha256:0\ntorch==2.13.0 --hash=sha256:0\n")
    lockfile = tmp_path / "versions.toml"
    lockfile.write_text(lock.FILE.read_text())
    monkeypatch.setattr(wheels, "resolve", resolve)
    monkeypatch.setattr(wheels, "list_of", lists.__getitem__)

    digest = wheels.lock_tools(lockfile)

    assert asked == [(wheels.TOOLS_BASE, [wheels.TOOLS], "numpy==1\ntorch==2.13.0\n")]
    assert wheels.pins(lists["tools"].read_text()) == {"uv": "1"}
    assert digest == wheels.sha256(lists["tools"])
    assert f'sha256 = "{digest}"' in lockfile.read_text()


def test_wheels_that_are_all_there_are_not_asked_for(tmp_path, monkeypatch):
    (tmp_path / "a-1-py3-none-any.whl").write_bytes(b"content")
    listing = tmp_path / "list.txt"
    digest = wheels.sha256(tmp_path / "a-1-py3-none-any.whl")
    listing.write_text(f"a==1 --hash=sha256:{digest}\n")
    monkeypatch.setattr(wheels, "_require_python", lambda base: None)
    monkeypatch.setattr(wheels, "_pip", lambda *_: pytest.fail("asked pip"))

    wheels.fetch(tmp_path, listing)


@pytest.fixture
def indexes(tmp_path, monkeypatch):
    """Two indexes: one like PyPI, without a CPU build of torch, and one like the PyTorch project's."""
    wheels_of = {"pypi/a": "1", "pypi/torch": "2", "cpu/torch": "2+cpu"}
    made = {place: archives.wheel(place.split("/")[1], version) for place, version in wheels_of.items()}
    for place, (file, content) in made.items():
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / file).write_bytes(content)
        (tmp_path / place / "index.html").write_text(f'<a href="{quote(file)}">{file}</a>')
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(wheels, "_require_python", lambda base: None)
    with archives.serving(tmp_path) as url:
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/pypi")
        monkeypatch.setattr(wheels, "CPU_INDEX", f"{url}/cpu")
        yield made


def listed(*chosen):
    return "".join(
        f"{file.split('-')[0]}=={file.split('-')[1]} --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"
        for file, content in chosen
    )


def test_plain_pypi_and_the_pytorch_projects_index_have_every_wheel_of_a_local_bake(tmp_path, indexes):
    listing, folder = tmp_path / "list.txt", tmp_path / "wheels"
    wanted = [indexes["pypi/a"], indexes["cpu/torch"]]
    listing.write_text(listed(*wanted))

    wheels.fetch(folder, listing)

    assert {file.name for file in folder.iterdir()} == {file for file, _ in wanted}


def test_a_wheel_with_another_content_is_refused(tmp_path, indexes):
    listing = tmp_path / "list.txt"
    listing.write_text(listed(indexes["pypi/a"]).replace("sha256:", "sha256:0")[:-2] + "\n")

    with pytest.raises(LockError, match="DO NOT MATCH THE HASHES"):
        wheels.fetch(tmp_path / "wheels", listing)


def packaged(*files, name="a"):
    """A package as pip resolves it."""
    found = [{"url": f"https://x/{file}", "hashes": {"sha256": file}} for file in files]
    return {"name": name, "version": "1", "wheels": found}


@pytest.mark.parametrize(("base", "tag"), [("debian-12", "cp311"), ("ubuntu-24.04", "cp312")])
def test_each_base_takes_the_wheel_that_its_own_python_would_choose(base, tag):
    package = packaged(
        *(
            "a-1-py3-none-any.whl",
            "a-1-cp311-abi3-manylinux_2_28_x86_64.whl",
            "a-1-cp312-cp312-win_amd64.whl",
        ),
        *("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", "a-1-cp312-cp312-manylinux_2_17_x86_64.whl"),
        *("a-1-cp311-cp311-manylinux_2_40_x86_64.whl", "a-1-cp312-cp312-manylinux_2_40_x86_64.whl"),
    )

    assert wheels.best(package, wheels.tags(base)) == f"a-1-{tag}-{tag}-manylinux_2_17_x86_64.whl"


def test_a_package_without_a_wheel_for_a_base_is_refused():
    with pytest.raises(LockError, match="a==1: no wheel for this base"):
        wheels.best(packaged("a-1-cp39-cp39-win32.whl"), wheels.tags("debian-12"))


def test_the_same_packages_give_the_same_bill_of_materials():
    listing = (
        "bash\t5.2-1\tamd64\tbash\t5.2-1\tinstalled\n"
        "libc6\t2.36+1\tamd64\tglibc\t2.36+1\tinstalled\n"
        "old\t1\tamd64\told\t1\tconfig-files\n"
    )
    properties = {"payload_sha256": "0" * 64, "target": "qemu", "base": "debian-12"}
    components = sbom.debian_components(listing, "debian-12") + sbom.python_components("torch\t2.13.0+cpu\n")

    bill = sbom.document(components, properties)

    assert bill == sbom.document(list(reversed(components)), properties)
    assert [component["purl"] for component in bill["components"]] == [
        "pkg:deb/debian/bash@5.2-1?arch=amd64&distro=debian-12",
        "pkg:deb/debian/libc6@2.36%2B1?arch=amd64&distro=debian-12&upstream=glibc",
        "pkg:pypi/torch@2.13.0%2Bcpu",
    ]


def test_a_package_url_is_read_back_by_the_library_of_its_specification():
    listing = "libgcc-s1\t1:12.2.0-14+deb12u1~x\tamd64\tgcc-12\t12.2.0-14\tinstalled\n"
    (package,) = sbom.debian_components(listing, "ubuntu-24.04")
    (wheel,) = sbom.python_components("Typing_Extensions\t4.16.0\n")

    read = PackageURL.from_string(package["purl"])

    assert (read.type, read.namespace, read.name) == ("deb", "ubuntu", "libgcc-s1")
    assert read.version == "1:12.2.0-14+deb12u1~x"
    assert read.qualifiers == {"arch": "amd64", "distro": "ubuntu-24.04", "upstream": "gcc-12@12.2.0-14"}
    assert wheel["purl"] == "pkg:pypi/typing-extensions@4.16.0"


@given(
    st.text("abcxyz0189.+-~:", min_size=1),
    st.text("abcxyz0189.+-", min_size=1),
    st.text("ab.-_ABC", min_size=1),
)
def test_every_package_url_is_in_its_canonical_form(version, name, wheel):
    components = sbom.debian_components(f"{name}\t{version}\tall\tsource\t{version}1\tinstalled", "debian-12")
    components += sbom.python_components(f"{wheel}\t{version}")

    for component in components:
        assert PackageURL.from_string(component["purl"]).to_string() == component["purl"]
