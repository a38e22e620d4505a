"""``gpu-fleet new STACK``: make a stack file from a few questions or flags, and check it before writing."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from gpu_fleet_stacks.catalog import Cloud, regions
from gpu_fleet_stacks.core import files, naming
from gpu_fleet_stacks.core.errors import Problem, SettingsError, StacksError, shown
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.cost.lines import hold_to_budget
from gpu_fleet_stacks.new import stack_file
from gpu_fleet_stacks.new.stack_file import NewStack
from gpu_fleet_stacks.settings import Stack, neighbours, projects, reference, stack_files


@dataclass(frozen=True)
class Question:
    """One question whose answer goes into a stack file.

    Attributes:
        field: field of ``NewStack``.
        flag: the flag of the answer on a command line.
        keys: the keys of the file that it decides: a problem below one of them is a problem of the answer.
        default: answers so far -> value of an empty answer; None where an answer is needed.
    """

    field: str
    flag: str
    text: str
    keys: tuple[str, ...]
    default: Callable[[NewStack], str | None] = lambda _: None

    @property
    def is_list(self) -> bool:
        """Return whether the answer has several values, separated by commas."""
        return self.field in ("zones", "types", "recipients")

    def parsed(self, text: str) -> Any:
        """Return the field's value.

        Raises StacksError if the text is no positive number where one is needed.
        """
        if self.is_list:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if self.field in ("max_size", "monthly"):
            if not (text.isascii() and text.strip().isdecimal()) or int(text) == 0:
                raise StacksError(f"{self.flag} {text!r}: must be a whole number from 1 on")
            return int(text)
        return text.strip()


QUESTIONS = (
    Question("account_id", "--account", "Account id", ("account_id",)),
    Question("zones", "--zone", "Zones", ("network.zones", "network.slots"), lambda so: ", ".join(so.zones)),
    Question("cidr", "--cidr", "Network", ("network",), lambda so: so.cidr),
    Question("pool", "--pool", "Name of the pool", ("pools[0].name",), lambda so: so.pool),
    Question("types", "--type", "Instance types", ("pools[0]",), lambda so: ", ".join(so.types)),
    Question(
        "max_size", "--max-size", "Most instances at once", ("pools[0].size",), lambda so: str(so.max_size)
    ),
    Question("kms_instance_id", "--kms-instance", "KMS instance id", ("storage",)),
    Question("image", "--image", "Image id", ("image",), lambda so: "" if so.cloud is Cloud.AWS else None),
    Question("recipients", "--recipient", "E-mail addresses for alarms", ("budget.recipients",)),
    Question(
        "monthly",
        "--monthly",
        "Budget of a month",
        ("budget.monthly", "budget.currency"),
        lambda so: str(stack_file.suggested_budget(so)),
    ),
    Question("owner", "--owner", "Owner of the stack", ("owner",), lambda so: so.owner),
)
NEXT = ("cost", "rehearse", "preflight", "preview", "up")
# Answers without a default.
NEEDED = {
    Cloud.AWS: {"account_id", "recipients"},
    Cloud.ALICLOUD: {"account_id", "recipients", "kms_instance_id", "image"},
}
ASSUME = "budget.assume"
# Questions of one cloud only; the other cloud keeps the default.
ONLY_ON = {"kms_instance_id": Cloud.ALICLOUD}


def applying(cloud: Cloud) -> tuple[Question, ...]:
    """Return the questions of a cloud, in their order."""
    return tuple(question for question in QUESTIONS if ONLY_ON.get(question.field, cloud) is cloud)


def with_answer(so_far: NewStack, question: Question, text: str) -> NewStack:
    """Return the answers with one more. Raises StacksError."""
    answers = replace(so_far, **{question.field: question.parsed(text)})
    problems = [problem for problem in stack_file.problems(answers) if concerns(problem, question)]
    if problems:
        said = "; ".join(_said(problem, text) for problem in problems)
        hint = "; --assume NAME=PRICE writes it" if ASSUME in said else ""
        raise StacksError(f"{question.flag} {text!r}: {said}{hint}")
    return answers


def _said(problem: Problem, answer: str) -> str:
    """Return what is allowed, with the value where that is not the answer itself."""
    return problem.allowed if str(problem.value) == answer else f"{shown(problem.value)} {problem.allowed}"


def concerns(problem: Problem, question: Question) -> bool:
    """Return whether a problem of the file is caused by this answer."""
    return any(problem.key == key or problem.key.startswith((f"{key}.", f"{key}[")) for key in question.keys)


def asked(so_far: NewStack, question: Question) -> NewStack:
    """Ask a user until the answer is valid."""
    while True:
        default = question.default(so_far)
        # click alone asks again after an empty answer, and does not say why
        text = click.prompt(question.text, default=default or "", show_default=bool(default), err=True)
        if default is None and not text.strip():
            click.echo("  an answer is needed", err=True)
            continue
        try:
            return with_answer(so_far, question, text)
        except StacksError as error:
            click.echo(f"  {error}", err=True)


def answered(so_far: NewStack, given: Mapping[str, str], *, interactive: bool) -> NewStack:
    """Return every answer, from flags or a user. Raises StacksError."""
    wrong = [
        f"{question.flag} {given[question.field]!r}: is for {ONLY_ON[question.field]} only"
        for question in QUESTIONS
        if question.field in given and question not in applying(so_far.cloud)
    ]
    missing = {question for question in applying(so_far.cloud) if question.field in NEEDED[so_far.cloud]}
    for question in applying(so_far.cloud):
        if question.field in given:
            try:
                so_far = with_answer(so_far, question, given[question.field])
            except StacksError as error:
                wrong.append(str(error))
        elif interactive:
            _suggest(so_far, question)
            so_far = asked(so_far, question)
        elif not wrong and (default := question.default(so_far)) is not None:
            so_far = with_answer(so_far, question, default)
        elif question in missing:
            wrong.append(f"{question.flag} is missing: {question.text}")
    if wrong:
        raise StacksError("\n       ".join(wrong))
    return so_far


def _suggest(so_far: NewStack, question: Question) -> None:
    """Show some types of the catalog with their prices before the question for types."""
    if question.field != "types":
        return
    for kind in stack_file.suggested(so_far.cloud, so_far.region):
        price = (
            f"{kind.price.amount_per_hour} {kind.price.currency} an hour" if kind.price else "price unknown"
        )
        click.echo(
            f"  {kind.name}: {kind.gpu_count} x {kind.gpu_model} {kind.gpu_memory_gib} GiB, {price}", err=True
        )


def assumed(text: str) -> dict[str, str]:
    """Return name -> price from the flag's values; raise StacksError for others."""
    prices = {}
    for item in filter(None, text.split(",")):
        name, _, price = (part.strip() for part in item.partition("="))
        if not name or not price:
            raise StacksError(f"--assume {item!r}: must be NAME=PRICE, such as p5e.48xlarge=40")
        prices[name] = price
    return prices


def region_of(cloud: Cloud, region: str | None, *, interactive: bool) -> str:
    """Return a region of the cloud; raise StacksError with near ones where it is none."""
    known = regions.of_cloud(cloud)
    while True:
        if region is None and interactive:
            region = click.prompt("Region", default="", show_default=False, err=True)
        if region in known:
            return str(region)
        near = ", ".join(get_close_matches(region or "", known, n=3, cutoff=0))
        said = f"--region {region!r}: must be a region of {cloud}, such as {near}"
        if not interactive:
            raise StacksError("--region is missing" if region is None else said)
        click.echo(f"  {said}", err=True)
        region = None


def at_terminal() -> bool:
    """Return whether there is a user to ask."""
    return sys.stdin.isatty()


OPTIONS = (
    click.option("--cloud", type=click.Choice([str(known) for known in Cloud]), help="Cloud of the stack."),
    click.option("--region", help="Such as us-east-1 or cn-shenzhen."),
    click.option("--account", "account_id", metavar="ID", help="The stack's account; others are refused."),
    click.option("--zone", "zones", multiple=True, help="Zone of the region; repeat for more."),
    click.option("--cidr", help="Private network, say 10.20.0.0/16; by default one that no stack here has."),
    click.option("--pool", help="Name of the first pool."),
    click.option(
        "--type", "types", multiple=True, help="Instance type of the pool; see gpu-fleet catalog list."
    ),
    click.option("--max-size", help="Most instances of the pool at once."),
    click.option(
        "--kms-instance", "kms_instance_id", metavar="ID", help="Alibaba Cloud: KMS instance of the key."
    ),
    click.option("--image", metavar="ID", help="Image id; by default AWS's deep-learning image."),
    click.option(
        "--recipient", "recipients", multiple=True, metavar="MAIL", help="E-mail address for alarms."
    ),
    click.option("--monthly", help="Budget, in USD on AWS and CNY on Alibaba Cloud."),
    click.option(
        "--assume",
        multiple=True,
        metavar="NAME=PRICE",
        help="Price that no list has, such as p5e.48xlarge=40.",
    ),
    click.option("--owner", help="User or team responsible for the stack."),
)


def answer_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags for the questions to a command that writes a stack file."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def stack_name(text: str) -> str:
    """Return a stack's name, before anything else is asked. Raises StacksError."""
    if re.fullmatch(naming.NAME_FORM, text) is None:
        raise StacksError(f"stack {text!r}: must be {naming.NAME_RULE}")
    return text


def stack_text(name: str, flags: Mapping[str, Any], first_line: str, others: Iterable[Stack] = ()) -> str:
    """Return a stack file from flags, and from questions for what they leave out; `check` accepts it.

    Args:
        flags: the values of ``OPTIONS``.
        others: the stacks beside it, whose networks are not proposed.

    Raises StacksError, which names every flag that is missing or wrong, or a budget that is too small.
    """
    stack_name(name)
    given = {
        key: ",".join(value) if isinstance(value, tuple) else value for key, value in flags.items() if value
    }
    interactive = at_terminal()
    cloud, region = given.pop("cloud", None), given.pop("region", None)
    if cloud is None:
        if not interactive:
            raise StacksError(f"--cloud is missing; allowed: {', '.join(Cloud)}")
        clouds = click.Choice([str(known) for known in Cloud])
        cloud = click.prompt("Cloud", type=clouds, default="", show_default=False, err=True)
    chosen = Cloud(cloud)
    start = stack_file.starting_from(name, chosen, region_of(chosen, region, interactive=interactive))
    taken = [other.network.cidr for other in others if other.network.cidr]
    cidr = str(neighbours.free_network(taken))
    start = replace(start, cidr=cidr, assume=assumed(given.pop("assume", "")))
    if wrong_name := tuple(problem for problem in stack_file.problems(start) if problem.key == "stack"):
        raise SettingsError(name, wrong_name)
    answers = answered(start, given, interactive=interactive)
    stack = stack_file.settings_of(answers)
    hold_to_budget(estimate(stack), stack.budget.monthly, allow_overcommit=False)
    return stack_file.text_of(answers, first_line)


def next_steps(name: str) -> str:
    """Return the commands to run next with a new stack file."""
    return "\n".join(f"  gpu-fleet {verb} {name}" for verb in NEXT)


@click.command(
    epilog="\b\nExamples:\n  gpu-fleet new research\n"
    "  gpu-fleet new research --cloud aws --region us-east-1 --account 123456789012 \\\n"
    "      --type g5.xlarge --recipient ml@example.com --print"
)
@click.argument("name", metavar="STACK")
@answer_options
@click.option("--print", "only_print", is_flag=True, help="Print the file instead of writing it.")
def new(name: str, *, only_print: bool, **flags: Any) -> None:
    """Write a stack file from flags, and from questions for what they leave out.

    The rules of `gpu-fleet check` and the budget are checked before the file is written; an existing file is
    never overwritten.
    """
    folder = projects.folder()
    if folder is None and not only_print:
        raise StacksError(projects.missing())
    here = folder or Path.cwd()
    path = here / f"Pulumi.{name}.yaml"
    if not only_print and path.exists():
        raise StacksError(f"{path} already exists; nothing was written")
    first_line = reference.modeline(here)
    text = stack_text(name, flags, first_line, stack_files.beside(name))
    if only_print:
        click.echo(text, nl=False)
        return
    try:
        with path.open("x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError as error:
        raise StacksError(f"{path} already exists; nothing was written") from error
    schema = here / first_line.removeprefix(reference.MODELINE)
    if not schema.exists():
        files.replace(schema, reference.text())
    click.echo(f"{path} is written; next:\n{next_steps(name)}")
