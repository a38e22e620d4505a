"""The controller's files fit the Slurm of Debian 12 (22.05), and of Ubuntu 24.04 (23.11).

No job has run on 23.11: the tests check the configuration by its sources and its manual.
"""

import re
import tomllib
from pathlib import Path

from gpu_fleet_image.slurm import configuration
from gpu_fleet_image.slurm.configuration import Cluster

UNITS = Path(__file__).parents[3] / "image/gpu_fleet_image/recipe/rootfs/etc/systemd/system"
READ = {
    name: set(table["words"].split())
    for name, table in tomllib.loads(Path(__file__).with_name("slurm_options.toml").read_text()).items()
}
CLUSTER = Cluster("test", "host", "10.0.0.4", {"dev": 0, "train": 1000}, "/home/state")
ROWS = configuration.slurm_conf(CLUSTER).splitlines()
LISTS = ("NodeSet", "PartitionName")  # whose rows have options of their own


def names(rows) -> set[str]:
    return {row.partition("=")[0] for row in rows}


def test_both_versions_read_every_option():
    """An unknown one is a fatal error: PreemptParameters to 22.05, CgroupAutomount to later ones."""
    partitions = [row.split() for row in ROWS if row.startswith("PartitionName=")]
    given = {
        "slurm": names(ROWS),
        "slurmdbd": names(configuration.slurmdbd_conf("host", "10.0.0.4").splitlines()),
        "cgroup": names(configuration.cgroup_conf().splitlines()),
        "partition": names(word for words in partitions for word in words) - {*LISTS},
    }

    assert len(partitions) == 2
    assert {table: words - READ[table] for table, words in given.items() if words - READ[table]} == {}


def test_no_plugin_is_one_that_23_11_has_no_more():
    """23.11 removed cons_res, and all plugins called none except of auth and cred (its RELEASE_NOTES)."""
    plugins = [
        value for value in (row.partition("=")[2] for row in ROWS) if re.fullmatch(r"[a-z]+/\w+", value)
    ]

    assert len(plugins) > 5
    assert not [plugin for plugin in plugins if plugin.endswith(("/none", "/cons_res"))]


def test_the_list_of_gpus_is_each_nodes_own():
    """Since 23.02 a node gets the controller's copy of a file that is included by a name without a folder."""
    included = configuration.gres_conf().split()[1]

    assert included == configuration.NODE_GPUS
    assert "/" in included


def test_systemd_leaves_the_cgroups_of_jobs_to_slurm():
    """cgroup v2's plugin needs these settings of slurmd's unit (cgroup_v2.html); it detects the version."""
    unit = (UNITS / "gpu-queue-node.service").read_text().splitlines()

    assert {"Delegate=yes", "KillMode=process"} <= {*unit}
    assert "CgroupPlugin" not in configuration.cgroup_conf()


def test_a_job_has_the_cores_gpus_and_memory_that_it_was_given_and_no_more():
    constrained = {"ConstrainCores=yes", "ConstrainDevices=yes", "ConstrainRAMSpace=yes"}

    assert constrained <= {*configuration.cgroup_conf().splitlines()}
    assert {"SelectTypeParameters=CR_Core_Memory", "TaskPlugin=task/cgroup,task/affinity"} <= {*ROWS}
