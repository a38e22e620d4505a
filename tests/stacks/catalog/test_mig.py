"""Pools with MIG: the GPUs that support it, and the setting on their instances."""

import re
import tomllib

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.payload import instance_file
from tests.stacks import alicloud_examples
from tests.stacks.examples import pool, stack

KINDS = [kind for cloud in Cloud for kind in catalog.load().of_cloud(cloud)]


def profile_on(settings):
    """Return the MIG profile in the first pool's instance files."""
    text = instance_file.instance_toml(settings, settings.pools[0], "s3://c", "s3://d")
    return tomllib.loads(text)["mig_profile"]


def test_an_instance_of_a_pool_with_a_profile_gets_it_and_any_other_keeps_its_gpus_whole():
    on_aws = stack(pools=[pool(types=["p4d.24xlarge"], mig_profile="3g.20gb")])
    cut = alicloud_examples.pool(types=["ecs.gn7e-c16g1.4xlarge"], mig_profile="1g.10gb")

    assert profile_on(on_aws) == "3g.20gb"
    assert profile_on(alicloud_examples.stack(pools=[cut])) == "1g.10gb"
    assert profile_on(stack()) == ""


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
