"""``gpu-fleet accept STACK``: prove a stack in a real account."""

import importlib
import importlib.metadata
import logging
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gpu_fleet_image.core.shared_options import MOST_MONEY
from gpu_fleet_stacks.acceptance import evidence as evidences
from gpu_fleet_stacks.acceptance import plan, steps, variant
from gpu_fleet_stacks.acceptance.account import Account
from gpu_fleet_stacks.acceptance.clock import RunClock, SystemClock
from gpu_fleet_stacks.acceptance.engine import PulumiCli, StackEngine
from gpu_fleet_stacks.acceptance.errors import AcceptanceError
from gpu_fleet_stacks.acceptance.evidence import Evidence, Status, StepRecord
from gpu_fleet_stacks.acceptance.metering import Metering
from gpu_fleet_stacks.acceptance.plan import AcceptanceStep, RunCost
from gpu_fleet_stacks.acceptance.runner import AcceptanceRun, execute, tear_down
from gpu_fleet_stacks.catalog import Cloud, InstanceType
from gpu_fleet_stacks.catalog.money import Money
from gpu_fleet_stacks.core import files, naming
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.core.signals import ended_like_by_keyboard
from gpu_fleet_stacks.preflight.command import look as preflight_look
from gpu_fleet_stacks.settings import ImageMode, Stack, projects, reader, stack_files, yaml_text
from gpu_fleet_stacks.settings.stack_argument import stack_argument

CODE = Path(__file__).resolve().parents[3]
PIPE_WIDTH = 140
INTERRUPTED = 130  # exit code of a process that Ctrl-C ended, as a shell reports it
# Some minutes on four processors: an interruption follows its request by some tens of seconds.
EPOCHS = 400.0
PACKAGES = ("boto3", "botocore", "pulumi", "pulumi-aws", "pulumi-alicloud", "aliyun-python-sdk-core")
ACCOUNTS = {
    Cloud.AWS: ("gpu_fleet_stacks.acceptance.aws", "AwsAccount"),
    Cloud.ALICLOUD: ("gpu_fleet_stacks.acceptance.alicloud", "AlicloudAccount"),
}
STYLES = {Status.OK: "green", Status.FAILED: "bold red", Status.SKIPPED: "yellow"}


def account_of(stack: Stack, clock: RunClock) -> Account:
    """Return the stack's account; only the SDK of its cloud is loaded."""
    module, name = ACCOUNTS[stack.cloud]
    made: Account = getattr(importlib.import_module(module), name)(stack, clock)
    return made


@dataclass(frozen=True)
class Surroundings:
    """The environment that a run acts on; tests pass their own.

    Attributes:
        engine: (stack's name, log) -> the engine that deploys it.
        stack_folder: the folder of the stack files, where the variant's file is written too.
    """

    account: Callable[[Stack, RunClock], Account] = account_of
    engine: Callable[[str, Path], StackEngine] = lambda name, log: PulumiCli(projects.root(), name, log)
    clock: RunClock = field(default_factory=SystemClock)
    look: Callable[[Any], Any] = preflight_look
    stack_folder: Path = field(default_factory=projects.stack_folder)
    evidence_folder: Path = field(default_factory=lambda: projects.build_folder() / "acceptance")
    epochs: float = EPOCHS


@dataclass(frozen=True)
class AcceptOptions:
    """The command's options; see their help."""

    name: str
    max_usd: Decimal
    type_name: str | None
    stop_file_only: bool
    unpriced: Decimal | None


class PositiveAmount(click.ParamType[Decimal]):
    """A positive amount of money, exact."""

    name = "amount"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        """Return the text as a decimal number."""
        try:
            amount = Decimal(str(value))
        except ArithmeticError:
            self.fail(f"{value!r}: must be a number, such as 20", param, ctx)
        if not (amount.is_finite() and 0 < amount <= MOST_MONEY):
            self.fail(f"{value!r}: must be more than 0, and at most {MOST_MONEY:,}", param, ctx)
        return amount


@click.command(epilog="\b\nExample:\n  gpu-fleet accept aws-dev --max-usd 20")
@stack_argument
@click.option(
    "--max-usd", type=PositiveAmount(), default="20", show_default=True, help="Most that the run may cost."
)
@click.option(
    "--type", "type_name", metavar="TYPE", help="Instance type of both pools; default: the cheapest."
)
@click.option(
    "--interrupt",
    type=click.Choice(["auto", "stop-file"]),
    default="auto",
    show_default=True,
    help="auto: a spot interruption by the cloud where it allows one, else the stop file.",
)
@click.option(
    "--unpriced-per-hour",
    "unpriced",
    type=PositiveAmount(),
    help="Cost of everything without a public price together, in the budget's currency.",
)
@click.option("--plan", "plan_only", is_flag=True, help="Show steps and worst cost; start nothing.")
@click.option("--clean-up", is_flag=True, help="Tear down what an earlier run left.")
@click.option("--yes", is_flag=True, help="Do not ask before the first thing that costs money.")
@click.pass_context
def accept(
    context: click.Context,
    /,
    *,
    name: str,
    interrupt: str,
    plan_only: bool,
    clean_up: bool,
    yes: bool,
    **rest: Any,
) -> None:
    """Prove STACK in its account: a small copy is deployed, trains, is interrupted, swept and destroyed.

    Writes build/acceptance/STACK-accept-TIME.json and .md with every step, time, amount and failure.
    Exit code 0: every step passed, and nothing that is paid for is left.
    """
    world = context.obj if isinstance(context.obj, Surroundings) else Surroundings()
    options = AcceptOptions(
        name, rest["max_usd"], rest["type_name"], interrupt == "stop-file", rest["unpriced"]
    )
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    try:
        with ended_like_by_keyboard():
            prepared = prepare(world, options)
            if clean_up:
                code = _clean_up(console, world, prepared)
            else:
                code = _accept(console, world, prepared, plan_only=plan_only, yes=yes)
    except StacksError as error:
        click.echo(f"error: {error}", err=True)
        code = 1
    except KeyboardInterrupt:
        click.echo("interrupted before anything was started", err=True)
        code = INTERRUPTED
    context.exit(code)


@dataclass(frozen=True)
class Prepared:
    """A run before it starts.

    Attributes:
        variant: the stack that the run would deploy.
        raw: the ``config`` mapping of its file.
    """

    options: AcceptOptions
    variant: Stack
    raw: dict[str, Any]
    path: Path
    kind: InstanceType
    price: RunCost
    cap: Money


def prepare(world: Surroundings, options: AcceptOptions) -> Prepared:
    """Derive a stack's variant and the run's highest cost; start nothing.

    Raises:
        StacksError: the stack does not exist, its file is wrong, it cannot be accepted, or a price is
            unknown.
    """
    raw = stack_files.config_of(stack_files.path_of(options.name))
    stack = stack_files.settings_of(options.name)
    if stack.emulated:
        raise AcceptanceError(f"{options.name}: endpoint_url names an emulator; a proof needs an account")
    if stack.image.mode is ImageMode.NONE:
        raise AcceptanceError(
            f"{options.name}: image.mode = 'none': its instances run no agent, gate or trainer"
        )
    kind, cap = variant.chosen_type(stack.cloud, options.type_name), plan.in_currency(options.max_usd, stack)
    made = variant.config(raw, stack, kind, cap.amount)
    prefix = f"{naming.PROJECT}:"
    own = {key.removeprefix(prefix): value for key, value in made.items() if key.startswith(prefix)}
    small = reader.from_mapping(variant.name_of(options.name), own)
    path = world.stack_folder / f"Pulumi.{small.name}.yaml"
    return Prepared(options, small, made, path, kind, plan.price(small, options.unpriced), cap)


def _accept(console: Console, world: Surroundings, prepared: Prepared, *, plan_only: bool, yes: bool) -> int:
    """Show the plan, check it against the cap, ask, and run it; return the exit code."""
    _show(console, prepared)
    plan.hold_to_cap(prepared.price, prepared.cap)
    if plan_only:
        return 0
    if prepared.path.exists():
        raise AcceptanceError(
            f"{prepared.path} exists: an earlier run was not torn down, or another is running; "
            f"if none runs: gpu-fleet accept {prepared.options.name} --clean-up"
        )
    run = _run(world, prepared)
    _hold_to_account(run)
    run.evidence.plan = [(step.name, step.deadline_s) for step in plan.STEPS]
    if not yes:
        click.confirm(f"Start it in account {prepared.variant.account_id}?", abort=True)
    _write_stack_file(prepared)
    execute(run, steps.actions(world.look), _Listener(console, run, world.evidence_folder).listen)
    return _ended(console, world, prepared, run)


def _clean_up(console: Console, world: Surroundings, prepared: Prepared) -> int:
    """Tear down the remains of an earlier run; return the exit code."""
    run = _run(world, prepared)
    _hold_to_account(run)
    if not prepared.path.exists():
        _write_stack_file(prepared)  # the CLI reads from the file how the state's secrets are encrypted
    tear_down(run, _Listener(console, run, world.evidence_folder).listen)
    return _ended(console, world, prepared, run)


def _run(world: Surroundings, prepared: Prepared) -> AcceptanceRun:
    """Return a run that has not started."""
    small, cap = prepared.variant, prepared.cap
    engine = world.engine(small.name, world.evidence_folder / f"{small.name}-pulumi.log")
    evidence = Evidence(
        stack=prepared.options.name,
        variant=small.name,
        cloud=str(small.cloud),
        region=small.region,
        account=small.account_id,
        began=world.clock.now(),
        currency=cap.currency,
        cap=cap.amount,
        worst=prepared.price.worst.amount,
        plan=[],
        versions=versions(engine),
        notes=list(prepared.price.foreign),
    )
    unpriced = Money(prepared.options.unpriced or Decimal(0), cap.currency)
    return AcceptanceRun(
        variant=small,
        account=world.account(small, world.clock),
        engine=engine,
        clock=world.clock,
        metering=Metering(small, cap, prepared.price.once, unpriced),
        evidence=evidence,
        epochs=world.epochs,
        stop_file_only=prepared.options.stop_file_only,
    )


def _hold_to_account(run: AcceptanceRun) -> None:
    """Refuse credentials of an account other than the stack's.

    Raises:
        AcceptanceError: the credentials are of another account.
        CannotCheckError: there are no credentials, or the cloud refuses them.
    """
    identity = run.account.identity()
    if identity != run.variant.account_id:
        wanted = run.variant.account_id
        raise AcceptanceError(
            f"the credentials are of account {identity}, the stack file names account_id {wanted}"
        )


def _write_stack_file(prepared: Prepared) -> None:
    text = "# Made by `gpu-fleet accept`, which removes it once the stack is torn down.\n"
    files.replace(prepared.path, text + yaml_text.written({"config": prepared.raw}))


def _ended(console: Console, world: Surroundings, prepared: Prepared, run: AcceptanceRun) -> int:
    """Write the evidence, print its path and what is left; return the exit code."""
    as_json, page = evidences.write(run.evidence, world.evidence_folder)
    torn_down = run.evidence.steps[-1].status is Status.OK
    if torn_down:
        prepared.path.unlink(missing_ok=True)
    remaining = run.evidence.remaining or []
    paid = [orphan for orphan in remaining if orphan.per_hour != "0"]
    if len(remaining) > len(paid):
        count = len(remaining) - len(paid)
        console.print(f"{count} things still carry the tag and are not paid by the hour: see the evidence")
    for orphan in paid:
        what = f"{orphan.kind} {orphan.id} {orphan.state}"
        line = f"still there: {what}, {orphan.per_hour} an hour {orphan.note}"
        console.print(line, highlight=False, markup=False)
    if not torn_down:
        console.print(f"[bold red]not torn down[/]: gpu-fleet accept {run.evidence.stack} --clean-up")
    verdict = "[green]passed[/]" if run.evidence.passed else "[bold red]failed[/]"
    spent = f"{run.evidence.accrued:.2f} {run.evidence.currency}"
    console.print(f"{verdict}, {spent} by its own estimate; evidence: {page} and {as_json}", highlight=False)
    return 0 if run.evidence.passed else 1


def _show(console: Console, prepared: Prepared) -> None:
    """Print the plan and its cost, before anything costs money."""
    price, title = prepared.price, f"acceptance of {prepared.variant.name}"
    table = Table(box=None, header_style="bold", title=title, title_justify="left")
    for heading in ("step", "proves", "minutes at most"):
        table.add_column(heading, justify="right" if "minutes" in heading else "left")
    for step in plan.STEPS:
        table.add_row(step.name, step.proves, f"{step.deadline_s // plan.MINUTE_S}")
    console.print(table)
    console.print(
        f"two {prepared.kind.name} in {prepared.variant.region}; at worst {price.worst}: {price.per_hour} "
        f"an hour for {price.hours} hours, {price.once} by volume; allowed {prepared.cap}",
        highlight=False,
    )
    for sentence in price.foreign:
        console.print(f"note: {sentence}", highlight=False)


class _Listener:
    """A listener that shows each step at its begin and end, and writes the evidence after each step."""

    def __init__(self, console: Console, run: AcceptanceRun, folder: Path) -> None:
        self._console, self._run, self._folder = console, run, folder
        self._status: Any = None

    def listen(self, event: str, step: AcceptanceStep | None, done: StepRecord | None) -> None:
        """Show that a step starts or has ended."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if event == "begin" and step is not None:
            self._status = self._console.status(f"{step.name}: {step.proves}")
            self._status.start()
        if done is not None:
            evidences.write(self._run.evidence, self._folder)
            style = STYLES[done.status]
            spent = f"{done.accrued:.2f} {self._run.evidence.currency}"
            self._console.print(
                f"[{style}]{done.status:>7}[/] {done.name} ({done.seconds:.0f} s, {spent}): ", end=""
            )
            self._console.print(done.observed, markup=False, highlight=False)


def versions(engine: StackEngine) -> dict[str, str]:
    """Return the version of each program and module of the run; ``unknown`` if it cannot be read."""
    versions = {"gpu-fleet": _commit(), "python": platform.python_version(), "pulumi CLI": engine.version()}
    return versions | {name: importlib.metadata.version(name) for name in PACKAGES}


def _commit() -> str:
    """Return the commit of the checkout, ``-dirty`` with changed files; otherwise the package's version."""
    if not (CODE / ".git").exists():
        return importlib.metadata.version(naming.PROJECT)
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, cwd=CODE, capture_output=True, text=True, check=False)
    except OSError:
        logging.getLogger(__name__).warning("event=no-git effect='the evidence names no commit'")
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


if __name__ == "__main__":
    accept()
