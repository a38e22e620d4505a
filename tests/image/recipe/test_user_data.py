"""What shipped stacks hand their instances, judged by the program that will read it: cloud-init itself."""

import os
from pathlib import Path

import pytest

from gpu_fleet_image.recipe import build_requirements
from gpu_fleet_image.recipe.errors import RequirementError
from gpu_fleet_stacks.settings import stack_files
from tests.image.recipe.declared import user_data
from tests.ran import ran
from tests.stacks.shipped import SHIPPED

pytestmark = [pytest.mark.image, pytest.mark.timeout(600)]

CACHE = Path(__file__).resolve().parents[3] / "build" / "cloud-init"
# cloud-init with the modules it imports; unpacked beside one another, never installed on this computer.
MODULES = (
    *("attr", "blinker", "certifi", "chardet", "configobj", "idna", "jinja2", "json-pointer", "jsonpatch"),
    *("jsonschema", "markupsafe", "netifaces", "oauthlib", "pkg-resources", "pyrsistent", "requests"),
    *("serial", "six", "urllib3", "yaml"),
)
CLOUD_INIT = ("cloud-init", *(f"python3-{name}" for name in MODULES))
SHIPPED = {name: stack_files.settings_of(name) for name in SHIPPED}


@pytest.fixture(scope="session")
def cloud_init():
    try:
        return build_requirements.unpack(CLOUD_INIT, CACHE)
    except RequirementError as reason:
        pytest.skip(str(reason))


def schema_check(cloud_init, file):
    modules = cloud_init / "usr/lib/python3/dist-packages"
    return ran(
        ["/usr/bin/python3", "-m", "cloudinit.cmd.main", "schema", "--config-file", str(file)],
        env={**os.environ, "PYTHONPATH": str(modules)},
    )


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_launch_template_passes_cloud_inits_own_schema(cloud_init, tmp_path, name):
    declared = user_data(SHIPPED[name])

    assert len(declared) >= len(SHIPPED[name].pools)
    assert all("runcmd:" in text for text in declared.values())
    for template, text in declared.items():
        file = tmp_path / f"{template}.yaml"
        file.write_text(text)
        checked = schema_check(cloud_init, file)
        assert checked.returncode == 0, f"{template}: {checked.stdout}{checked.stderr}"
        assert "Valid cloud-config" in checked.stdout


def test_the_schema_check_refuses_what_cloud_init_would_not_understand(cloud_init, tmp_path):
    file = tmp_path / "broken.yaml"
    file.write_text("#cloud-config\nwrite_files: [{content: no path}]\n")

    checked = schema_check(cloud_init, file)

    assert checked.returncode != 0
    assert "'path' is a required property" in checked.stdout + checked.stderr
