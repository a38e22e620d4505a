"""Archives of a stack's functions: modules of ``image/``, a policy from the settings, and packages.

This module does not import those modules: they are data to a stack. The packages come from the environment
that runs Pulumi, in the versions of ``requirements.txt``: Function Compute has no boto3 and no SDK.
"""

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache
from importlib.metadata import PackageNotFoundError, PackagePath, files
from pathlib import PurePosixPath
from typing import Any

from gpu_fleet_image.recipe import places
from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.cost import meter_prices
from gpu_fleet_stacks.settings import Market, Pool, Stack
from gpu_fleet_stacks.settings.pools import group_plans, high_load_alarms, low_load_alarm

ROOT = places.folder("image/gpu_fleet_image").parent
PACKAGE = "gpu_fleet_image"
ENTRY = "gpu_fleet_image.controllers.sweep.handler"
HANDLER = f"{ENTRY}.handle"
AGENT = "gpu_fleet_image.instance.agent.command"
PEOPLE = "gpu_fleet_image.controllers.directory"  # a module for each cloud, with its handler
MOVER = "gpu_fleet_image.controllers.mover"  # a module for each cloud, with its handler
POLICY_FILE = "policy.json"
# In the records bucket; users' commands read it.
POLICY_KEY = "reaper/policy.json"
# In the same bucket: e-mail addresses, which only the sweep may read.
ROSTER_KEY = "reaper/roster.json"
# In the same bucket: the accounts that instances make.
ACCOUNTS_KEY = "reaper/accounts.json"
# Prefix in the same bucket: records of the function that reads a directory.
PEOPLE_BOOK = "reaper/accounts"
# In that function's archive, beside the policy.
DIRECTORY_FILE = "directory.json"
# The queue controller's report of all jobs (image/gpu_fleet_image/queue/books.py).
QUEUE_JOBS_KEY = "reaper/queue/jobs.json"
# The queue controller's request to the mover (image/gpu_fleet_image/core/queue_need.py).
QUEUE_NEED_KEY = "reaper/capacity/queue.json"
QUEUE_WRITES = (QUEUE_NEED_KEY, QUEUE_JOBS_KEY)
# `gpu-fleet runs` reads it; it holds the reason where no instance is launched
# (image/gpu_fleet_image/core/capacity.py).
MOVER_STATE_KEY = "reaper/capacity/state.json"
# `gpu-fleet submit` reads it: the money left for more instances
# (image/gpu_fleet_image/controllers/mover/growth.py).
GROWTH_KEY = "reaper/capacity/growth.json"
QUEUE_SAYS = (QUEUE_JOBS_KEY, GROWTH_KEY)

MIB_PER_GIB = 1024
# What of a type's memory Slurm finds on each instance at least: firmware and kernel have the rest.
FOR_JOBS = Decimal("0.95")

# Pure Python alone goes along: what is packed on any computer runs on any other. Of boto3's descriptions of
# four hundred services only that of S3, which OSS speaks.
PACKAGES = (
    "aliyun-python-sdk-core",
    "boto3",
    "botocore",
    "jmespath",
    "python-dateutil",
    "s3transfer",
    "six",
    "urllib3",
)
DESCRIBED = "botocore/data/"
KEPT_DESCRIPTIONS = (
    "s3/",
    "_retry.json",
    "endpoints.json",
    "partitions.json",
    "sdk-default-configuration.json",
)
LEFT_OUT = ("boto3/data/", "boto3/examples/", "dateutil/zoneinfo/")
COMPILED = (".so", ".pyd", ".dylib")
LICENCES = ("LICENSE", "LICENCE", "NOTICE", "COPYING")


class PackageError(StacksError):
    """A package of the functions is not installed, or is not pure Python."""


@cache
def modules(entry: str = ENTRY, cloud: str = "") -> tuple[str, ...]:
    """Return the paths of the modules that the entry imports, directly or not, sorted.

    Args:
        entry: a dotted name inside ``image``.
        cloud: the cloud whose modules are added; the entry finds them by its policy. Empty for none.
    """
    paths: set[str] = set()
    waiting = [entry, f"gpu_fleet_image.providers.{cloud}.connect"]
    while waiting:
        path = waiting.pop().replace(".", "/") + ".py"
        if path not in paths and (ROOT / path).is_file():
            paths |= {path, *(f"{folder}/__init__.py" for folder in PurePosixPath(path).parents[:-1])}
            waiting += _imports((ROOT / path).read_text(encoding="utf-8"))
    return tuple(sorted(paths))


def _imports(source: str) -> list[str]:
    """Return every name in ``image`` that a module imports: modules and names inside them."""
    names = []
    for node in ast.parse(source).body:  # imports are at the top: ruff's PLC0415 enforces that
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            names += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.startswith(f"{PACKAGE}.")]
    return names


def policy_text(stack: Stack) -> str:
    """Return the policy as text for the function's archive, the records bucket and the output ``policy``."""
    return json.dumps(policy_document(stack), indent=1, sort_keys=True)


def policy_document(stack: Stack) -> dict[str, Any]:
    """Return the sweep's ``policy.json``."""
    reaper = stack.reaper
    return {
        "schema_version": 1,
        "cloud": str(stack.cloud),
        "region": stack.region,
        "stack": stack.name,
        "metric_namespace": naming.metric_namespace(stack.name),
        "currency": stack.budget.currency,
        "dry_run": reaper.dry_run,
        "max_actions": reaper.max_actions,
        "max_percent": reaper.max_percent,
        "time_zone": reaper.time_zone,
        "pools": {pool.name: _pool(stack, pool) for pool in stack.pools},
        "watch_days": reaper.watch_days,
        "breaker_release": str(reaper.breaker_release),
        "agents": agents_release(stack.cloud),
        "notify_users": stack.notify.anybody,
        "take_max_per_person": stack.take.max_per_person,
        "leftovers": {
            "older_than_days": reaper.leftovers.older_than_days,
            "remove": reaper.leftovers.remove,
        },
        "budget": meter_prices.budget_document(stack),
        **({"session_document": naming.session_document(stack.name)} if by_account(stack) else {}),
    }


@cache
def agents_release(cloud: Cloud) -> str:
    """The release of the agent in this checkout: a digest of all sources that it runs."""
    paths = {*modules(AGENT, str(cloud)), *modules(f"gpu_fleet_image.instance.agent.{cloud}", str(cloud))}
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path}\n".encode() + (ROOT / path).read_bytes())
    return digest.hexdigest()


def by_account(stack: Stack) -> bool:
    """Return whether sessions open as the user's own account, by a document of the stack (AWS)."""
    return stack.cloud is Cloud.AWS and stack.access.accounts


def roster_text(stack: Stack) -> str:
    """Return ``roster.json``: the addresses of users; only the sweep's role may read it."""
    notify = stack.notify
    content = {
        "users": notify.users,
        "operators": list(stack.budget.recipients),
        "sender": notify.sender,
        "webhooks": [{"kind": str(webhook.kind), "secret": webhook.secret} for webhook in notify.webhooks],
    }
    return json.dumps(content, indent=1, sort_keys=True)


def _pool(stack: Stack, pool: Pool) -> dict[str, Any]:
    idle = pool.idle
    scratch = any(catalog.load().get(name).instance_store_scratch for name in pool.types)
    return {
        "market": str(pool.market),
        "min_size": pool.size.min,
        "idle_after_hours": idle.after_hours,
        "grace_minutes": idle.grace_minutes,
        "min_uptime_minutes": idle.min_uptime_minutes,
        "coverage_percent": idle.coverage_percent,
        "action": str(idle.action),
        "terminate_stopped_after_days": idle.terminate_stopped_after_days,
        "quiet_hours": [{"start": span.start, "end": span.end} for span in idle.quiet_hours],
        "quiet_weekends": idle.quiet_weekends,
        "instance_store_scratch": scratch,
        "max_lifetime_hours": pool.max_lifetime_hours,
        "scale_in_alarm": low_load_alarm(stack, pool),
        "require_acknowledgement": True,
        "sensors": {
            "watch": list(idle.watch),
            "command": list(idle.command),
            "command_timeout_s": idle.command_timeout_s,
            "cpu_cores": idle.limits.cpu_cores,
            "disk_kib_per_s": idle.limits.disk_kib_per_s,
            "network_kib_per_s": idle.limits.network_kib_per_s,
        },
        "hourly_price": {name: _price(stack, pool, name) for name in pool.types},
        "capacity": _capacity(stack, pool) if stack.image.managed else None,
    }


def _capacity(stack: Stack, pool: Pool) -> dict[str, Any]:
    """Return how the mover grows a pool; it needs the agent, which reports that an instance came up."""
    return {
        "groups": [plan.label for plan in group_plans(stack, pool)],
        **({"on_demand_fallback": True} if pool.on_demand_fallback else {}),
        "max_size": pool.size.max,
        "spare": pool.spare,
        "together": pool.efa or pool.erdma,
        "scale_out_alarms": list(high_load_alarms(stack, pool)),
        **_queue(stack, pool),
    }


def _queue(stack: Stack, pool: Pool) -> dict[str, int]:
    """What the queue counts an instance of the pool as: the least of any of its types."""
    if not stack.queued:
        return {}
    types = [catalog.load().get(name) for name in pool.types]
    return {
        "queue_gpus": min(known.gpu_count for known in types),
        "queue_cpus": min(known.vcpu for known in types),
        "queue_memory_mib": min(int(known.memory_gib * MIB_PER_GIB * FOR_JOBS) for known in types),
    }


def _price(stack: Stack, pool: Pool, name: str) -> str | None:
    """Return what one hour less saves, as text; None where the price is unknown.

    The stack file's assumption comes first; a list price counts only in its own region and currency. Only
    pools on demand have a price here: spot prices change by the hour, and a reservation costs the same
    unused.
    """
    if pool.market is not Market.ON_DEMAND:
        return None
    if (assumed := stack.budget.assume.get(name)) is not None:
        return str(assumed)
    price = catalog.load().get(name).price
    if price is None:
        return None
    if price.currency != stack.budget.currency or price.region != stack.region:
        return None
    return str(price.amount_per_hour)


@cache
def packages() -> Mapping[str, bytes]:
    """Return the files of every package: path in the archive -> content.

    Raises:
        PackageError: a package is missing, or has a part for one platform alone.
    """
    content: dict[str, bytes] = {}
    for name in PACKAGES:
        for path in _files(name):
            if path.suffix in COMPILED:
                raise PackageError(
                    f"{name}: {path} is for one platform; the functions carry pure Python alone"
                )
            content[path.as_posix()] = path.read_binary()
    return content


def _files(name: str) -> Iterator[PackagePath]:
    try:
        listed = files(name) or []
    except PackageNotFoundError as error:
        raise PackageError(f"{name} is not installed; run pip install -r requirements.txt") from error
    return (path for path in listed if _is_packed(path))


def _is_packed(path: PackagePath) -> bool:
    text = path.as_posix()
    if ".." in path.parts or "__pycache__" in path.parts or text.startswith(LEFT_OUT):
        return False
    if path.parts[0].endswith(".dist-info"):
        return path.name.upper().startswith(LICENCES)
    if text.startswith(DESCRIBED):
        return text.removeprefix(DESCRIBED).startswith(KEPT_DESCRIPTIONS)
    return True
