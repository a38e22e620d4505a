"""State that a release leaves behind: `python -m tests.releases.record 0.2.0` records it, with what it says.

Every later release has to read the same facts in it (`test_releases.py`), and to go on with the run
(`test_library.py`).
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_fleet_image.console.users.ledger_records import End
from gpu_fleet_image.controllers.meter.meter_state import Day, MeteredInstance, MeterReading, Unused
from gpu_fleet_image.controllers.sweep import lease, ledger
from gpu_fleet_image.controllers.sweep.situation import Withdrawn
from gpu_fleet_image.core import capacity, instance_file, policy, runs
from gpu_fleet_image.core.model import TAG_OWNER, TAG_POOL, Decision, Instance, Verdict
from gpu_fleet_image.core.store import StoredObject
from gpu_fleet_stacks.payload import sweep_policy
from gpu_fleet_stacks.payload.instance_file import instance_toml
from gpu_fleet_stacks.settings import Stack, reader, yaml_text

HERE = Path(__file__).parent
STACKS = HERE.parents[1] / "stacks"
FACTS, RUN = "facts.json", "run"
NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
REQUEST = "2026-11-26/users/ada/20261126T120000Z-1"


def stack_text(name: str) -> str:
    return (STACKS / f"Pulumi.{name}.yaml").read_text()


def stack_of(text: str) -> Stack:
    return reader.from_config("prod", yaml_text.read(text)["config"])


def stack_facts(file: Path) -> Any:
    stack = stack_of(file.read_text())
    pools = [[pool.name, pool.types, pool.size.max, pool.market] for pool in stack.pools]
    return [stack.cloud, stack.region, stack.version, stack.budget.monthly, pools]


def policy_facts(file: Path) -> Any:
    read = policy.parse(file.read_text())
    rules = {
        name: [
            pool.idle_after_hours,
            pool.grace_minutes,
            pool.action,
            pool.capacity and pool.capacity.max_size,
        ]
        for name, pool in read.pools.items()
    }
    return [read.stack, read.dry_run, read.max_actions, rules]


def instance_text() -> str:
    stack = stack_of(stack_text("aws-prod"))
    at = {"records_uri": "s3://records/reaper", "user_role": "arn:aws:iam::123456789012:role/user"}
    return instance_toml(stack, stack.pools[0], "s3://checkpoints/dev", "s3://data", **at)


def lease_text() -> str:
    written: dict[str, Any] = {}
    store: Any = SimpleNamespace(get=lambda _: None, create=lambda _, content: written.update(content) or "1")
    held = lease.Lease(store, "sweep-1", lambda: NOON)
    held.memory = lease.SweepMemory(
        notified_at={"unfit": NOON},
        leftovers_at=NOON,
        replaced={"i-1": ("dev", NOON)},
        ended={"i-2": ("dev", NOON)},
        idle={"dev": {"2026-11-26": {"i-3"}}},
        withdrawn={"i-4": Withdrawn(NOON, NOON, 2)},
        far_holds={"i-5": ("2030-01-01", NOON)},
        stopped={"i-6": ("ledger/x", NOON)},
    )
    held.memory.agents.newest = "abc"
    held.acquire()
    return _json(written)


def lease_facts(file: Path) -> Any:
    store: Any = SimpleNamespace(get=lambda _: StoredObject(_read(file), "1"))
    return asdict(lease.remembered(store))


def ledger_text() -> str:
    instance = Instance("i-1", "g5.xlarge", "running", NOON, {TAG_POOL: "dev", TAG_OWNER: "ada"})
    price = Decimal("1.006")
    end = Decision(instance, Verdict.TERMINATE, "idle for 12 h", 43200.0, NOON, NOON, hourly_price=price)
    return _json(
        ledger.record_of(end, sweep_policy.policy(stack_of(stack_text("aws-prod"))), "prod-dev", NOON)
    )


def meter_text() -> str:
    instance = MeteredInstance("dev", "ada", "g5.xlarge", 1, Decimal("1.1"), NOON + timedelta(hours=1))
    day = Day(
        NOON.replace(hour=0), {"dev": Decimal("4.4")}, unused={"train": {"cr-1": Unused(60, Decimal("0.5"))}}
    )
    month = {"dev": Decimal("31.5"), "_shared": Decimal("0.5")}
    known = {"running": {"i-1": instance}, "saved": {"i-2": instance}, "unreported": ("2026-11-25",)}
    return _json(MeterReading("USD", NOON, NOON, month, day, Decimal(7), **known).to_json())


def mover_text() -> str:
    request = capacity.Request(
        REQUEST, "dev", 2, 4.5, NOON, reason="no room", instances=("i-1",), tried=("a",)
    )
    coming = capacity.Coming("c-1", "dev", REQUEST, NOON, "prod-dev", NOON, 2, True, "activity-1")
    trouble = {"prod-dev": capacity.Trouble(NOON, "InsufficientInstanceCapacity")}
    state = capacity.MoverState({REQUEST: request}, (coming,), trouble, {"dev": NOON}, {"train": "frozen"})
    return _json(state.to_json())


def job_text() -> str:
    where = {"instances": (runs.Member("i-1", "10.0.0.4"),), "directory": "/scratch/runs/ada/run-1"}
    who = {"account": "ada", "by": "ada", "stack": "prod", "pool": "dev", "at": "2026-11-26T12:00:00Z"}
    return (
        runs.Job("run-1", arguments=("run", "--", "train.py"), archive_sha256="0" * 64, **where, **who)
        .content()
        .decode()
    )


# file -> how this release writes it, and the facts that this release reads in one of any release
KINDS: Mapping[str, tuple[Callable[[], str], Callable[[Path], Any]]] = {
    "aws-prod.yaml": (lambda: stack_text("aws-prod"), stack_facts),
    "alicloud-prod.yaml": (lambda: stack_text("alicloud-prod"), stack_facts),
    "policy.json": (lambda: sweep_policy.policy_text(stack_of(stack_text("aws-prod"))), policy_facts),
    "instance.toml": (instance_text, lambda file: asdict(instance_file.load(file))),
    "lease.json": (lease_text, lease_facts),
    "ledger.json": (ledger_text, lambda file: asdict(End.from_json(_read(file), file.name))),
    "meter.json": (meter_text, lambda file: asdict(MeterReading.from_json(_read(file), file.name))),
    "mover.json": (mover_text, lambda file: asdict(capacity.MoverState.from_json(_read(file), file.name))),
    "job.json": (job_text, lambda file: asdict(runs.job_of(file.read_bytes()))),
}


def folders() -> list[Path]:
    """The releases that are recorded."""
    return sorted(path.parent for path in HERE.glob(f"*/{FACTS}"))


def facts(file: Path) -> Any:
    """What this release reads in a recorded file, as JSON holds it."""
    return json.loads(json.dumps(KINDS[file.name][1](file), default=_plain))


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else str(value)


def _read(file: Path) -> Any:
    return json.loads(file.read_text())


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def main(release: str) -> None:
    """Write the folder of a release anew."""
    folder = HERE / release
    shutil.rmtree(folder, ignore_errors=True)
    (folder / RUN).mkdir(parents=True)
    for name, (written, _) in KINDS.items():
        (folder / name).write_text(written())
    read = {name: facts(folder / name) for name in KINDS}
    # by a process of its own: a checkpoint holds the code that its process has loaded
    loop = (sys.executable, "-m", "tests.releases.run", folder / RUN)
    read[RUN] = json.loads(subprocess.run(loop, check=True, stdout=subprocess.PIPE).stdout)
    (folder / FACTS).write_text(_json(read))


if __name__ == "__main__":
    main(*sys.argv[1:])
