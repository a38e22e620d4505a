"""``python -m tests.bench.bench_cost``: the time a stack's cost takes, and how well the advice holds."""

import json
import timeit
from functools import partial
from typing import Any

import yaml

from gpu_fleet_stacks.advise.work import state_bytes
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.crossguard.rules import RULES
from gpu_fleet_stacks.settings import stack_files
from tests.bench import entries
from tests.image.controllers.meter import simulated_month
from tests.stacks.advise.measured_models import MODELS, measured
from tests.stacks.advise.published_runs import PUBLISHED, held_out_errors
from tests.stacks.crossguard.test_crossguard import ADVISORY, BREAKS
from tests.stacks.shipped import SHIPPED

entry = partial(entries.entry, command="python -m tests.bench.bench_cost")
STACK = "aws-prod"
RUNS = 50
SEEDS = 5
MILLION = 1_000_000
MS = 1000


def measure() -> dict[str, Any]:
    """All entries of this bench."""
    stack, text = stack_files.settings_of(STACK), stack_files.path_of(STACK).read_text()
    cost_ms = timeit.timeit(lambda: estimate(stack), number=RUNS) / RUNS * MS
    # what any tool does first with the same file
    parse_ms = timeit.timeit(lambda: yaml.safe_load(text), number=RUNS) / RUNS * MS
    states = [measured(name) for name in MODELS]
    memory_error = max(abs(state_bytes(count) / found - 1) for count, found in states)
    time_error = max(abs(run.error) for run in PUBLISHED)
    held_out = max(abs(error) for error in held_out_errors())
    meter_error = max(simulated_month.error(seed) for seed in range(SEEDS))
    proven = {*BREAKS, ADVISORY[0]}
    return {
        "cost_of_stack_ms": entry(cost_ms, "ms", parse_ms, "< the parsing of its file"),
        "advise_memory_error": entry(memory_error, "of the measured bytes", 0.10, "< 0.10"),
        "advise_time_error": entry(time_error, "of the published time", 0.25, "< 0.25"),
        "advise_time_error_held_out": entry(held_out, "of the published time", None, "shown"),
        "meter_error": entry(meter_error * MILLION, "millionths of a simulated month", 1000, "< 1000"),
        "priced_parts_share": entry(priced_parts_share(), "of AWS's prices", 1.0, "1.0"),
        "policy_rules": entry(len(RULES), "rules", None, ">= 12"),
        "policy_rules_proven": entry(len(proven), "rules", len(RULES), "all"),
    }


def priced_parts_share() -> float:
    """Return the share of the prices behind the shipped stacks of AWS that are published for their region."""
    costs = [estimate(stack_files.settings_of(name)) for name in SHIPPED if "alicloud" not in name]
    quotes = [(cost, quote) for cost in costs for quote in cost.quotes]
    priced = [quote for cost, quote in quotes if quote.amount is not None and quote.region == cost.region]
    return len(priced) / len(quotes)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))  # noqa: T201 - the result is what the command is for
