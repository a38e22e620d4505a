"""Every command of ``gpu-fleet``: its name, where its click object lies, and its line in the help. Data."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One command.

    Attributes:
        target: ``module:attribute`` of a click command or group.
    """

    target: str
    line: str


@dataclass(frozen=True)
class Rows:
    """A group that has no module of its own.

    Attributes:
        example: shown at the end of its help.
        commands: name -> row.
    """

    line: str
    example: str
    commands: Mapping[str, Row]


IMAGE = Rows(
    "Build images, roll them back, and hold what they take from outside.",
    "gpu-fleet image build aws-prod",
    {
        "build": Row(
            "gpu_fleet_stacks.images.command:build", "Build a stack's image on its cloud, and promote it."
        ),
        "rollback": Row(
            "gpu_fleet_stacks.images.command:rollback", "Boot the image before the promoted one."
        ),
        "scan": Row("gpu_fleet_stacks.images.command:scan", "What a scanner knows of the promoted image."),
        "bake": Row(
            "gpu_fleet_image.recipe.build:main", "Bake on this computer: a folder, a disk or a container."
        ),
        "compare": Row(
            "gpu_fleet_image.recipe.file_list:main", "Compare two bakes of the same inputs, file by file."
        ),
        "lock": Row(
            "gpu_fleet_image.recipe.lock_command:main", "List what comes from outside, and how it is held."
        ),
        "payload": Row(
            "gpu_fleet_image.recipe.build:payload_command", "Write the tarball that a cloud's builder runs."
        ),
        "wheels": Row(
            "gpu_fleet_stacks.images.wheels_command:wheels", "Put the trainer's wheels into a bucket."
        ),
    },
)

GPU = Rows(
    "Share an instance's GPUs: who reserved which, until when.",
    "gpu-fleet gpu list",
    {
        "list": Row(
            "gpu_fleet_image.instance.gpus.command:list_gpus", "The instance's GPUs, and who reserved them."
        ),
        "reserve": Row(
            "gpu_fleet_image.instance.gpus.command:reserve", "Reserve some of them for hours or days."
        ),
        "release": Row("gpu_fleet_image.instance.gpus.command:release", "Give yours back before."),
        "env": Row("gpu_fleet_image.instance.gpus.command:env", "Let an open shell see yours alone."),
        "mps": Row(
            "gpu_fleet_image.instance.gpus.mps:mps", "Let several processes compute on yours at once."
        ),
    },
)

CATALOG = Rows(
    "Instance types and their prices.",
    "gpu-fleet catalog show p5.48xlarge",
    {
        "list": Row("gpu_fleet_stacks.catalog.command:list_types", "Every GPU instance type of both clouds."),
        "show": Row(
            "gpu_fleet_stacks.catalog.command:show", "One type: GPUs, network, quota, price, source."
        ),
        "refresh": Row(
            "gpu_fleet_stacks.catalog_refresh.command:refresh", "Read today's list prices from the clouds."
        ),
    },
)

# Called by units of an instance: no help and no completion offers them.
INTERNAL = "On an instance, by systemd"
# Who uses it -> its commands, in the order of the help.
SECTIONS: Mapping[str, Mapping[str, Row | Rows]] = {
    "Users of instances": {
        "take": Row(
            "gpu_fleet_image.console.users.take:take", "Take instances: they start where there is room."
        ),
        "give-back": Row("gpu_fleet_image.console.users.take:give_back", "Return an instance that you took."),
        "status": Row(
            "gpu_fleet_image.console.users.status:status", "Every instance: owner, idle time, cost."
        ),
        "explain": Row(
            "gpu_fleet_image.console.users.explain:explain", "Why an instance is terminated or kept."
        ),
        "keep": Row(
            "gpu_fleet_image.console.users.keep:keep", "Keep an instance for hours or days, used or not."
        ),
        "release": Row("gpu_fleet_image.console.users.keep:release", "Keep an instance no longer."),
        "connect": Row(
            "gpu_fleet_image.console.users.connect:connect", "A shell on an instance, or a port of it here."
        ),
        "gpu": GPU,
        "train": Row("gpu_fleet.cli:main", "Prepare data, train, launch on many instances."),
        "submit": Row(
            "gpu_fleet_image.console.runs.command:submit", "Start a run on instances, as your account there."
        ),
        "runs": Row(
            "gpu_fleet_image.console.runs.follow:runs", "Your submitted runs: phase, step, loss, cost."
        ),
        "logs": Row("gpu_fleet_image.console.runs.follow:logs", "The log of a submitted run."),
        "cancel": Row("gpu_fleet_image.console.runs.follow:cancel", "Ask a submitted run to save and end."),
    },
    "Platform teams": {
        "init": Row(
            "gpu_fleet_stacks.new.init_command:init", "Write a repository of your own, with a first stack."
        ),
        "new": Row("gpu_fleet_stacks.new.command:new", "Write a stack file from questions or flags."),
        "check": Row("gpu_fleet_stacks.cost.check:check", "Check a stack file; needs no cloud."),
        "schema": Row(
            "gpu_fleet_stacks.settings.reference:command",
            "The stack file's keys, as a JSON Schema for editors.",
        ),
        "cost": Row("gpu_fleet_stacks.cost.command:cost", "What a stack costs an hour and a month."),
        "advise": Row(
            "gpu_fleet_stacks.advise.__main__:main", "What a training run needs, and what to rent."
        ),
        "catalog": CATALOG,
        "rehearse": Row(
            "gpu_fleet_stacks.rehearsal.__main__:main", "Run a stack in process, without an account."
        ),
        "preflight": Row(
            "gpu_fleet_stacks.preflight.command:preflight", "Ask the cloud whether there is room."
        ),
        "policy": Row(
            "gpu_fleet_stacks.deployer.command:policy", "What whoever deploys a stack may do, as policies."
        ),
        "preview": Row("gpu_fleet_stacks.plan_check.pulumi_command:preview", "Show what `up` would change."),
        "accept": Row(
            "gpu_fleet_stacks.acceptance.command:accept", "Prove a stack in a real account, cost capped."
        ),
        "outputs": Row(
            "gpu_fleet_stacks.plan_check.pulumi_command:outputs", "Print what a deployed stack exports."
        ),
        "up": Row("gpu_fleet_stacks.plan_check.pulumi_command:up", "Create or update the stack."),
        "destroy": Row(
            "gpu_fleet_stacks.teardown.command:destroy", "Drain and delete a stack; keep its data."
        ),
        "sweep": Row(
            "gpu_fleet_image.console.operators.sweep:sweep", "Run the idle sweep by hand; dry by default."
        ),
        "unfreeze": Row(
            "gpu_fleet_image.console.operators.unfreeze:unfreeze", "Let frozen pools scale out again."
        ),
        "report": Row(
            "gpu_fleet_image.console.operators.report:report", "What a month saved, or a day was worth."
        ),
        "image": IMAGE,
    },
    INTERNAL: {
        "accounts": Row(
            "gpu_fleet_image.instance.accounts.command:command", "Make the accounts of the stack's users."
        ),
        "start-run": Row(
            "gpu_fleet_image.instance.accounts.start_run:start_run", "Start a submitted run, as its account."
        ),
        "agent": Row(
            "gpu_fleet_image.instance.agent.command:command", "Watch this instance, publish heartbeats."
        ),
    },
}
