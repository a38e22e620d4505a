"""``gpu-fleet policy STACK``: the permissions of a stack's deployer, as policies to attach."""

import contextlib
import json
from pathlib import Path

import click

from gpu_fleet_image.core.shared_options import note
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core import files, naming
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.deployer.policy import Declared, Wanted, policies
from gpu_fleet_stacks.rehearsal import bucket_policies, existing
from gpu_fleet_stacks.rehearsal.clients import ClientPool, RegionClients
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import Rehearsed, read_config, run_program
from gpu_fleet_stacks.settings import Stack, stack_files
from gpu_fleet_stacks.settings.stack_argument import stack_argument


@click.command(epilog="\b\nExample:\n  gpu-fleet policy aws-dev --out build/policies --state-bucket my-state")
@stack_argument
@click.option(
    "--out",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help="Write a file for each policy into this folder, instead of all to standard output.",
)
@click.option("--state-bucket", default="", metavar="NAME", help="Pulumi's bucket, read and written.")
@click.option("--state-key", default="", metavar="ARN", help="The KMS key of the state's secrets (AWS).")
@click.option("--delete-data", is_flag=True, help="Also what `destroy --delete-data` needs.")
def policy(name: str, out: Path | None, state_bucket: str, state_key: str, delete_data: bool) -> None:
    """Print the policies that preview, up, refresh and destroy of a stack need.

    Prints policies of IAM or RAM as JSON, by the name to give each, made from the resources that the stack's
    program registers in process. Needs no account.
    """
    stack = stack_files.settings_of(name)
    if state_key and stack.cloud is not Cloud.AWS:
        raise StacksError("--state-key: allowed on AWS; on Alibaba Cloud a passphrase guards the secrets")
    made = policies(stack, declared(stack), Wanted(state_bucket, state_key, delete_data))
    named = {
        naming.prefixed(name, "deployer", str(number)): document for number, document in enumerate(made, 1)
    }
    for remark in notes(stack, state_bucket):
        note(f"note: {remark}")
    if out is None:
        click.echo(json.dumps(named, indent=2))
        return
    out.mkdir(parents=True, exist_ok=True)
    for title, document in named.items():
        files.replace(out / f"{title}.json", json.dumps(document, separators=(",", ":")) + "\n")
        click.echo(out / f"{title}.json")


def notes(stack: Stack, state_bucket: str) -> list[str]:
    """Return notes on what the policies leave out, or also allow."""
    said = []
    if not state_bucket:
        said.append("Pulumi's state is left out; --state-bucket names its bucket, --state-key its key on AWS")
    longer = [other for other in stack_files.names() if other.startswith(f"{stack.name}-")]
    said += [f"they also apply to stack {other}, whose names begin with the same prefix" for other in longer]
    return said


def declared(stack: Stack) -> list[Declared]:
    """Return the resources that the stack's program registers in this process with an embedded cloud."""
    return [
        Declared(resource.type, resource.name, resource.inputs) for resource in _rehearsed(stack).resources
    ]


def _rehearsed(stack: Stack) -> Rehearsed:
    if stack.cloud is not Cloud.AWS:
        return run_program(stack.name, answers=existing.alicloud_answers(stack))
    with (
        moto_server(stack.region),
        bucket_policies.conditions_left_out(),
        contextlib.closing(ClientPool()) as pool,
    ):
        clients = RegionClients(stack.region, pool)
        config = existing.renamed(read_config(stack.name), existing.made(clients, stack))
        return run_program(stack.name, config=config, clients=clients)
