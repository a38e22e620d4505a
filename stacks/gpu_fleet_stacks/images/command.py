"""``gpu-fleet image build|scan|rollback STACK``: an image that the cloud builds, tests and promotes."""

import sys
import time
from datetime import UTC, datetime
from typing import Any

import click

from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.images.builds import Build, Builds, BuildState, before, follow_until_tried
from gpu_fleet_stacks.settings import Cloud, Stack, stack_files
from gpu_fleet_stacks.settings.stack_argument import stack_argument

MOST_LINES = 20  # lines of critical findings in one message; `image scan` shows all


@click.command(epilog="\b\nExample:\n  gpu-fleet image build aws-prod")
@stack_argument
@click.option(
    "--again", is_flag=True, help="Build although this recipe was built: a newer base, newer packages."
)
@click.option(
    "--accept-findings", is_flag=True, help="Promote it in spite of critical findings (image.scan)."
)
def build(name: str, again: bool, accept_findings: bool) -> None:
    """Build a stack's image on its cloud, and let instances boot it after it has passed its tests.

    Starts the pipeline that `gpu-fleet up` declared, or follows a running build. Ctrl-C does not stop the
    build: run the command again to follow it, or to see its result. If no GPU is available for its test, the
    build is repeated in the next zone, for six hours.
    """
    stack = stack_files.settings_of(name)
    builds = builds_of(stack)
    builds.check()
    newest = next(iter(builds.history()), None)
    if newest is not None and newest.state is BuildState.DONE and not again:
        outcome = f"{newest.image_id} of this recipe was built and tested on {newest.created}"
        click.echo(f"{name}: {_with(outcome, builds.left(newest.image_id), ', and is promoted')}")
        return
    running = newest is not None and newest.state is BuildState.RUNNING
    promoted = builds.promoted()
    begun = newest if newest is not None and running else builds.start()
    click.echo(f"{name}: {'follows' if running else 'started'} build {begun.id}")
    done = follow_until_tried(builds, begun, click.echo, _now, time.sleep)
    if stack.image.scan and not accept_findings:
        hold_back(builds, done, promoted)
    builds.promote(done.image_id)
    outcome = f"{done.image_id} is built and tested"
    click.echo(f"{name}: {_with(outcome, builds.left(done.image_id), ', and promoted')}")


def hold_back(builds: Builds, done: Build, promoted: str) -> None:
    """Promote the previous image again if the new build's scan is not clean; the pipeline does not check.

    Raises:
        StacksError: the scan is not clean.
    """
    findings = builds.findings(done)
    if findings.clean:
        return
    if promoted:
        builds.promote(promoted)
    worst = "".join(f"\n  {line}" for line in findings.critical[:MOST_LINES])
    raise StacksError(
        f"{done.image_id}: {findings.sentence}; {promoted or 'nothing'} stays promoted, "
        f"`--again --accept-findings` promotes what it builds{worst}"
    )


@click.command(epilog="\b\nExample:\n  gpu-fleet image scan aws-prod")
@stack_argument
def scan(name: str) -> None:
    """Show a scanner's findings in the image that instances boot.

    Exit status 1 when a finding is critical, or the scan has not ended.
    """
    stack = stack_files.settings_of(name)
    builds = builds_of(stack)
    promoted = builds.promoted()
    build = next((made for made in builds.made() if made.image_id == promoted), None)
    if build is None:
        raise StacksError(f"{name}: {promoted or 'no image'} is promoted, which is none of its builds")
    findings = builds.findings(build)
    click.echo(f"{name}: {promoted} of {build.created}: {findings.sentence}")
    for line in findings.critical:
        click.echo(f"  {line}")
    if not findings.clean:
        sys.exit(1)


@click.command(epilog="\b\nExample:\n  gpu-fleet image rollback aws-prod")
@stack_argument
def rollback(name: str) -> None:
    """Let instances boot the image of the build before the promoted one.

    Running instances keep their image until they are replaced. The next build promotes its own image again.
    """
    stack = stack_files.settings_of(name)
    builds = builds_of(stack)
    promoted = builds.promoted()
    older = before(builds.made(), promoted)
    builds.promote(older.image_id)
    outcome = f"{promoted} is replaced by {older.image_id} of {older.created}"
    click.echo(f"{name}: {_with(outcome, builds.left(older.image_id), '')}")


def builds_of(stack: Stack, **asks: Any) -> Builds:
    """Return the builds of a stack on its cloud. Raises StacksError if the stack has no pipeline."""
    if not stack.image.built:
        raise StacksError(
            f"{stack.name}: image.base_id = null: names the Ubuntu 24.04 that a build starts from; then "
            f"`gpu-fleet up {stack.name}` declares the pipeline"
        )
    if stack.cloud is Cloud.ALICLOUD:
        # an SDK takes a second to load: load only that of the stack's cloud
        from gpu_fleet_stacks.images.alicloud import AlicloudBuilds  # noqa: PLC0415

        return AlicloudBuilds(stack, **asks)
    from gpu_fleet_stacks.images.aws import AwsBuilds  # noqa: PLC0415 - as above

    return AwsBuilds(stack, **asks)


def _with(outcome: str, left: str, otherwise: str) -> str:
    return f"{outcome}; {left}" if left else outcome + otherwise


def _now() -> datetime:
    return datetime.now(UTC)
