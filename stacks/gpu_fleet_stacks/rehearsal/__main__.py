"""``gpu-fleet rehearse [STACK]``: the main scenario, from start to end, without an account or a CLI."""

import contextlib
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import pulumi
from rich.console import Console

from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.core.signals import ended_like_by_keyboard
from gpu_fleet_stacks.rehearsal import (
    bucket_policies,
    budget_act,
    closing,
    existing,
    instances,
    reaper_act,
    training_act,
)
from gpu_fleet_stacks.rehearsal.clients import ClientPool, RegionClients
from gpu_fleet_stacks.rehearsal.errors import RehearsalError
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import Rehearsed, read_config, run_program
from gpu_fleet_stacks.rehearsal.tree import Tree
from gpu_fleet_stacks.settings import Cloud, Stack, projects, stack_files
from gpu_fleet_stacks.settings.stack_argument import stack_argument

# The only stack whose instances are small and idle enough for the acts with users.
WHOLE_PLAY = "local"
# exit code that a shell reports for a process that Ctrl-C ended
INTERRUPTED = 130


@dataclass
class Acts:
    """Headings of the acts, numbered without gaps: not every stack plays all of them."""

    console: Console
    number: int = 0

    def begin(self, title: str) -> None:
        """Print the next heading."""
        self.number += 1
        self.console.rule(f"[bold]{self.number}. {title}", align="left")


@click.command(epilog="\b\nExample:\n  gpu-fleet rehearse aws-dev")
@partial(stack_argument, default=WHOLE_PLAY)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    default=projects.build_folder,
    help="Place of rehearsal.json and everything the acts write; build/ of the project by default.",
)
def main(name: str, folder: Path) -> None:
    """Deploy a stack in an embedded moto; with a checkout's `local` also train, interrupt, resume, reap."""
    console = Console()
    try:
        settings = stack_files.settings_of(name)
        with (
            ended_like_by_keyboard(),
            moto_server(settings.region),
            bucket_policies.conditions_left_out(),
            contextlib.closing(ClientPool()) as pool,
        ):
            rehearse(Acts(console), RegionClients(settings.region, pool), settings, folder)
    except (StacksError, pulumi.RunError) as error:
        # RunError: the program's own refusal, for example of a worst month over the budget
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has ended")
        sys.exit(INTERRUPTED)


def rehearse(acts: Acts, clients: RegionClients, settings: Stack, build: Path) -> closing.Figures:
    """Run all acts of a stack and write their figures. Raises StacksError if an act cannot continue."""
    if settings.name == WHOLE_PLAY:
        training_act.require_trainer()
    started = time.perf_counter()
    folder = _empty(build / "rehearsal" / settings.name)
    rehearsed = stand_up(acts, clients, settings)
    figures: closing.Figures = {
        "resources": {
            "created": rehearsed.created,
            "recorded": rehearsed.recorded,
            "program_seconds": round(rehearsed.seconds, 2),
        }
    }
    if settings.cloud is Cloud.AWS:
        launched = instances.launched(clients, settings.name)
        acts.begin("the stack's own groups launch instances")
        acts.console.print(instances.table(launched))
        figures["instances"] = {"launched": len(launched)}
    else:
        acts.begin("Alibaba Cloud has no emulator: everything is recorded")
    if settings.name == WHOLE_PLAY:
        figures |= use(acts, clients, settings, rehearsed, folder)
    seconds = time.perf_counter() - started
    acts.begin("results")
    acts.console.print(closing.table(figures, seconds))
    target = build / "rehearsal.json"
    closing.write(target, settings.name, figures, seconds)
    acts.console.print(f"written to {_short(target)}; logs in {_short(folder)}")
    if broken := closing.broken_promises(figures):
        raise RehearsalError("; ".join(broken))
    return figures


def stand_up(acts: Acts, clients: RegionClients, settings: Stack) -> Rehearsed:
    """Run the first act: the program registers its resources, and moto creates those that it supports.

    Resources that the stack takes from another owner are made before.
    """
    name, config, answers = settings.name, read_config(settings.name), None
    acts.begin(f"the program of stack {name} against moto")
    if settings.cloud is Cloud.AWS:
        ids = existing.made(clients, settings)
        config = existing.renamed(config, ids)
        if ids or settings.storage.existing.buckets:
            acts.console.print(
                "of another owner, made for this rehearsal:", *ids, *settings.storage.existing.buckets
            )
    else:
        answers = existing.alicloud_answers(settings)
    with Tree(acts.console, name) as tree:
        return run_program(name, config=config, listener=tree.listen, clients=clients, answers=answers)


def use(
    acts: Acts, clients: RegionClients, settings: Stack, rehearsed: Rehearsed, folder: Path
) -> closing.Figures:
    """Run the acts of users: they train on instances, forget some, and spend the month's budget."""
    acts.begin("training, a spot notice half-way, the resume on another instance")
    spot = next(pool.name for pool in settings.pools if pool.market == "spot")
    user_data = instances.user_data(clients, rehearsed.outputs["launch_template_ids"][spot])
    trained = training_act.play(acts.console, clients, user_data, folder / "training")
    acts.console.print(training_act.table(trained))
    acts.begin("some instances are forgotten: the sweep, a dry run, then for real")
    reaped = reaper_act.play(acts.console, clients, settings, rehearsed, folder / "reaper")
    acts.console.print(reaper_act.summary(reaped))
    acts.begin("the month's budget is spent: one more sweep")
    breached = budget_act.play(clients, settings, rehearsed, folder / "budget")
    acts.console.print(budget_act.summary(breached))
    return {"trainer": asdict(trained), "reaper": asdict(reaped), "budget": asdict(breached)}


def _short(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _empty(folder: Path) -> Path:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


if __name__ == "__main__":
    main()
