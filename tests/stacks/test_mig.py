"""Pools whose GPUs are cut into instances: which can be, and what their instances are told."""

import re
import tomllib

from stacks import catalog
from stacks.catalog import Cloud
from stacks.payload import instance_file
from tests.stacks import alicloud_examples
from tests.stacks.examples import pool, stack

KINDS = [kind for cloud in Cloud for kind in catalog.load().of_cloud(cloud)]


def instance_file_of(settings):
    """The instance file of the first pool's instances."""
    return tomllib.loads(instance_file.instance_toml(settings, settings.pools[0], "s3://c", "s3://d"))


def test_an_instance_of_a_pool_with_a_profile_gets_it():
    settings = stack(pools=[pool(types=["p4d.24xlarge"], mig_profile="3g.20gb")])

    assert instance_file_of(settings)["mig_profile"] == "3g.20gb"


def test_an_instance_on_alibaba_cloud_gets_it_too():
    kind = "ecs.gn7e-c16g1.4xlarge"
    settings = alicloud_examples.stack(pools=[alicloud_examples.pool(types=[kind], mig_profile="1g.10gb")])

    assert instance_file_of(settings)["mig_profile"] == "1g.10gb"


def test_an_instance_of_any_other_pool_keeps_its_gpus_whole():
    assert instance_file_of(stack())["mig_profile"] == ""


def fits(profile, kind):
    form = re.fullmatch(r"[1-7]g\.(\d+)gb", profile)
    return form is not None and int(form[1]) <= kind.gpu_memory_gib + 1  # 7g.180gb of 179


def test_no_profile_holds_more_than_the_gpu():
    cut = [(kind, profile) for kind in KINDS for profile in kind.mig_profiles]

    assert cut
    assert [(kind.name, profile) for kind, profile in cut if not fits(profile, kind)] == []


def test_every_type_since_the_a100_that_trains_can_be_cut():
    trains = {"A100", "H100", "H200", "B200", "B300"}

    assert [kind.name for kind in KINDS if kind.gpu_model in trains and not kind.mig_profiles] == []
    assert [kind.name for kind in KINDS if kind.gpu_model in ("T4", "L4", "A10G") and kind.mig_profiles] == []
