"""Every command of ``gpu-fleet``: its name, its click object, and its line in the help."""

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
        commands: name -> row.
    """

    line: str
    example: str
    commands: Mapping[str, Row]


IMAGE = Rows(
    "Build images, roll them back, and lock their downloads.",
    "gpu-fleet image build aws-prod",
    {
        "build": Row(
            "gpu_fleet_stacks.images.command:build", "Build a stack's image on its cloud, and promote it."
        ),
        "rollback": Row(
            "gpu_fleet_stacks.images.command:rollback", "Boot the image before the promoted one."
        ),
        "scan": Row(
            "gpu_fleet_stacks.images.command:scan", "Show a scanner's findings on the promoted image."
        ),
        "bake": Row(
            "gpu_fleet_image.recipe.build:main", "Bake on this computer: a folder, a disk or a container."
        ),
        "lock": Row(
            "gpu_fleet_image.recipe.lock_command:main", "List the image's downloads, and their locks."
        ),
        "payload": Row(
            "gpu_fleet_image.recipe.build:payload_command", "Write the tarball that a cloud's builder runs."
        ),
        "wheels": Row(
            "gpu_fleet_stacks.images.wheels_command:wheels", "Upload the trainer's wheels to a bucket."
        ),
    },
)

GPU = Rows(
    "Share an instance's GPUs by reservations.",
    "gpu-fleet gpu list",
    {
        "list": Row(
            "gpu_fleet_image.instance.gpus.command:list_gpus",
            "List the instance's GPUs and their reservations.",
        ),
        "reserve": Row(
            "gpu_fleet_image.instance.gpus.command:reserve", "Reserve some of them for hours or days."
        ),
        "unreserve": Row("gpu_fleet_image.instance.gpus.command:unreserve", "End your reservation early."),
        "env": Row("gpu_fleet_image.instance.gpus.command:env", "Limit an open shell to your GPUs."),
        "mps": Row("gpu_fleet_image.instance.gpus.mps:mps", "Run several processes on your GPUs at once."),
    },
)

DATA = Rows(
    "Upload, download and list the files that users share.",
    "gpu-fleet data list --stack aws-dev",
    {
        "put": Row("gpu_fleet_image.console.data.command:put", "Upload a file or folder as shared/NAME/."),
        "get": Row("gpu_fleet_image.console.data.command:get", "Download shared/NAME/, verified."),
        "list": Row("gpu_fleet_image.console.data.command:list_data", "List what is there, and whose it is."),
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

# For units of an instance: neither help nor completion shows them.
INTERNAL = "On an instance, by systemd"
# Audience -> its commands, in the order of the help.
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
            "gpu_fleet_image.console.users.explain:explain", "Explain why an instance is terminated or kept."
        ),
        "keep": Row(
            "gpu_fleet_image.console.users.keep:keep", "Keep an instance for hours or days, used or not."
        ),
        "release": Row("gpu_fleet_image.console.users.keep:release", "Release your hold on an instance."),
        "connect": Row(
            "gpu_fleet_image.console.users.connect:connect", "Open a shell on an instance, or forward a port."
        ),
        "workspace": Row(
            "gpu_fleet_image.console.runs.workspace:workspace",
            "JupyterLab on your instance, in your browser.",
        ),
        "gpu": GPU,
        "data": DATA,
        "train": Row("gpu_fleet.cli:main", "Prepare data, train, launch on many instances."),
        "submit": Row(
            "gpu_fleet_image.console.runs.command:submit", "Start a run on instances, as your account there."
        ),
        "runs": Row(
            "gpu_fleet_image.console.runs.follow:runs", "Your submitted runs: phase, step, loss, cost."
        ),
        "logs": Row("gpu_fleet_image.console.runs.follow:logs", "The log of a submitted run."),
        "cancel": Row("gpu_fleet_image.console.runs.follow:cancel", "Ask a submitted run to save and stop."),
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
        "cost": Row("gpu_fleet_stacks.cost.command:cost", "Show what a stack costs an hour and a month."),
        "show": Row("gpu_fleet_stacks.picture.command:show", "Draw a stack: network, pools, budget, prices."),
        "advise": Row("gpu_fleet_stacks.advise.__main__:main", "Advise what a training run needs to rent."),
        "catalog": CATALOG,
        "rehearse": Row(
            "gpu_fleet_stacks.rehearsal.__main__:main", "Run a stack in process, without an account."
        ),
        "preflight": Row(
            "gpu_fleet_stacks.preflight.command:preflight", "Check quotas and capacity in the cloud."
        ),
        "policy": Row(
            "gpu_fleet_stacks.deployer.command:policy", "Print the policies that a deployer needs."
        ),
        "preview": Row("gpu_fleet_stacks.plan_check.pulumi_command:preview", "Show what `up` would change."),
        "upgrade-notes": Row(
            "gpu_fleet_stacks.releases.command:upgrade_notes", "What a deployed stack sees since a release."
        ),
        "accept": Row(
            "gpu_fleet_stacks.acceptance.command:accept", "Prove a stack in a real account, cost capped."
        ),
        "poc": Row(
            "gpu_fleet_image.console.poc.command:poc",
            "Measure a few instances before buying more, cost capped.",
        ),
        "outputs": Row(
            "gpu_fleet_stacks.plan_check.pulumi_command:outputs", "Print what a deployed stack exports."
        ),
        "up": Row("gpu_fleet_stacks.plan_check.pulumi_command:up", "Create or update the stack."),
        "destroy": Row(
            "gpu_fleet_stacks.teardown.command:destroy", "Drain and delete a stack; keep its data."
        ),
        "sweep": Row(
            "gpu_fleet_image.console.operators.sweep:sweep",
            "Run the idle sweep by hand; a dry run by default.",
        ),
        "unfreeze": Row(
            "gpu_fleet_image.console.operators.unfreeze:unfreeze", "Let frozen pools scale out again."
        ),
        "report": Row(
            "gpu_fleet_image.console.operators.report:report", "Report a month's savings, or a day's GPU use."
        ),
        "restore": Row(
            "gpu_fleet_image.console.data.restore:restore", "Copy a run's newest checkpoint into a stack."
        ),
        "image": IMAGE,
    },
    INTERNAL: {
        "accounts": Row(
            "gpu_fleet_image.instance.accounts.command:command", "Create the accounts of the stack's users."
        ),
        "start-run": Row(
            "gpu_fleet_image.instance.accounts.start_run:start_run", "Start a submitted run, as its account."
        ),
        "agent": Row(
            "gpu_fleet_image.instance.agent.command:command", "Watch this instance, publish heartbeats."
        ),
    },
}
