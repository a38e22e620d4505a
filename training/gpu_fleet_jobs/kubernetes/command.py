"""`render`: the manifests of a run, for a user's own cluster."""

import shlex
from pathlib import Path

import click

from gpu_fleet.core.errors import ConfigError
from gpu_fleet.core.lazy_groups import configured, identity_flags, identity_options
from gpu_fleet_jobs.kubernetes import sources
from gpu_fleet_jobs.kubernetes.manifests import as_yaml
from gpu_fleet_jobs.kubernetes.manifests import render as manifests_of
from gpu_fleet_jobs.kubernetes.request import (
    ClusterRequest,
    check,
    default_name,
    parse_claim,
    parse_selector,
    warnings,
)
from gpu_fleet_jobs.submitted.run_files import inner


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExample:\n  gpu-fleet train render --kubernetes digits.toml --nodes 2 "
    "--image ghcr.io/you/trainer:1 --claim datasets --checkpoint.uri s3://bucket/you/digits",
)
@click.argument("config_file", metavar="CONFIG", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
@click.option("--kubernetes", is_flag=True, help="An Indexed Job with a headless Service.")
@click.option("--trainjob", is_flag=True, help="A TrainJob of Kubeflow Trainer v2 with its runtime instead.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="A file instead of stdout.")
@click.option(
    "--image", required=True, metavar="NAME@sha256:HASH", help="A pushed image of `image bake oci`."
)
@click.option("--name", default="", help="Name of the Job; default: the last part of run.directory.")
@click.option("--namespace", default="", help="Default: kubectl's own.")
@click.option("--nodes", type=int, default=1, show_default=True, help="Pods, each on a node of its own.")
@click.option(
    "--gpus", type=int, default=1, show_default=True, help="GPUs of each pod; 0: one process on the CPU."
)
@click.option("--cpu", default="", metavar="QUANTITY", help="CPUs of each pod, such as 96.")
@click.option(
    "--memory", default="", metavar="QUANTITY", help="Memory of each pod, such as 900Gi; includes /dev/shm."
)
@click.option(
    "--shm-gib", type=int, default=0, help="Size of /dev/shm, in memory; default: 2 for each process."
)
@click.option("--claim", "claims", multiple=True, metavar="NAME[:FOLDER]", help="A volume; FOLDER: data.")
@click.option("--service-account", default="", help="Has a role for the bucket (IRSA, Pod Identity, RRSA).")
@click.option("--queue", default="", help="A LocalQueue of Kueue; the run begins suspended.")
@click.option("--efa", type=int, default=0, help="EFA interfaces of each pod.")
@click.option(
    "--hugepages", default="", metavar="QUANTITY", help="Huge pages of 2 MiB, such as 5120Mi, for EFA."
)
@click.option("--node-selector", multiple=True, metavar="KEY=VALUE", help="A label that nodes must have.")
@click.option("--user", type=int, default=1000, show_default=True, help="Number of the account in the pod.")
@click.option(
    "--retries", type=int, default=5, show_default=True, help="Retries of passing failures, per pod."
)
@identity_options
def render(
    *,
    config_file: Path,
    overrides: tuple[str, ...],
    kubernetes: bool,
    trainjob: bool,
    out: Path | None,
    name: str,
    claims: tuple[str, ...],
    node_selector: tuple[str, ...],
    allow: tuple[str, ...],
    branch: str,
    image: str,
    namespace: str,
    nodes: int,
    gpus: int,
    cpu: str,
    memory: str,
    shm_gib: int,
    service_account: str,
    queue: str,
    efa: int,
    hugepages: str,
    user: int,
    retries: int,
) -> None:
    """Write the manifests of the run of CONFIG, as YAML for kubectl; no cluster is called.

    Your configuration and code become a ConfigMap. A pod that is drained or preempted saves; the Job runs it
    again, and it resumes from its checkpoint. A failure for good ends the Job. Overrides are as for `start`.
    """
    if not (kubernetes or trainjob):
        raise ConfigError("render: give --kubernetes for an Indexed Job, or --trainjob")
    settings = configured(config_file, overrides, allow, branch)
    request = ClusterRequest(
        settings=settings,
        arguments=(inner(config_file), *overrides, *identity_flags(allow, branch)),
        name=name or default_name(settings.run.directory),
        image=image,
        nodes=nodes,
        gpus=gpus,
        namespace=namespace,
        trainjob=trainjob,
        queue=queue,
        service_account=service_account,
        claims=tuple(parse_claim(text) for text in claims),
        cpu=cpu,
        memory=memory,
        shm_gib=shm_gib,
        efa=efa,
        hugepages=hugepages,
        selector=tuple(parse_selector(text) for text in node_selector),
        user=user,
        retries=retries,
    )
    check(request)
    text = as_yaml(manifests_of(request, sources.of_run(config_file, settings)))
    for warning in warnings(request):
        click.echo(f"warning: {warning}", err=True)
    write(text, out)


def write(text: str, out: Path | None) -> None:
    """Write to a file, or to stdout; raises ConfigError if the file cannot be written."""
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out = {str(out)!r}: cannot be written: {error.strerror}") from error
    click.echo(f"kubectl create --filename {shlex.quote(str(out))}", err=True)
