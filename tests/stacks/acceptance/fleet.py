"""What moto does not play of an account: its instances, its schedule, its interruptions.

Instances are folders, booted from the user data and the payload that the stack registered. A command of Run
Command is the script itself, its absolute paths led into the folder of its instance; the trainer is started
from the unit and the sources of the payload; agents are real processes, as their unit starts them, on a clock
that runs fast. Everything happens while the acceptance run sleeps.
"""

import configparser
import math
import re
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

from moto.backends import get_backend
from moto.ssm.models import Command

from gpu_fleet_image.core.model import TAG_KEEP_UNTIL, TAG_REAP_AFTER
from gpu_fleet_image.instance.gate.__main__ import write_report
from gpu_fleet_image.instance.gate.checks import CheckResult
from gpu_fleet_stacks.rehearsal import cast, first_boot, instances, processes, sweeps
from gpu_fleet_stacks.rehearsal.cast import META_DATA, RESTS, TAGS, Part, Player
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.metadata import NOTICE, SPOT_ACTION, metadata_service
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from tests.held import slowly
from tests.ran import executable, ran

OWN = re.compile(r"(?<![\w/.-])/(etc/gpu-fleet|opt/gpu-fleet|run/gpu-fleet|scratch)(?=[/\s'\"]|$)")
# Laid out on an instance by a step that a folder cannot run: it installs packages.
UNITS = "opt/gpu-fleet/payload/rootfs/etc/systemd/system"
LIB = "opt/gpu-fleet/lib"
BEAT_AFTER, GATE_AFTER = timedelta(minutes=3), timedelta(minutes=2)
SHORTEST_LIFE = timedelta(minutes=2)
SWEEP_EVERY, SWEEP_WHILE_HELD = timedelta(minutes=5), timedelta(minutes=30)
# Long before any run of these tests is over, and after the last interruption of EC2's past.
BEGAN = timedelta(hours=10)
REAL_SECONDS_A_LOOK = 1.0
INTERRUPTED_UNIT = "trainer@accept-broken"

SYSTEMCTL = """#!{python}
import sys
from pathlib import Path
asked = Path("{folder}") / "systemctl"
asked.mkdir(exist_ok=True)
unit = next(word for word in sys.argv[2:] if not word.startswith("-"))
if sys.argv[1] == "start":
    (asked / unit).write_text("start")
elif (asked / (unit + ".state")).exists():
    sys.stdout.write((asked / (unit + ".state")).read_text())
else:
    sys.stdout.write("ActiveState=active\\nResult=success\\nNRestarts=0\\n")
"""
RUNUSER = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'
INSTALL = '#!/bin/sh\nfor last; do :; done; exec mkdir -p "$last"\n'
JOURNALCTL = "#!/bin/sh\ncat {folder}/trainer-*.log\n"
# The probe of the environment is the one thing that needs a GPU; the trainer itself runs.
PYTHON = """#!/bin/sh
[ "$1" = -c ] && echo "2.13.0 1" && exit 0
PYTHONPATH={folder}/{lib} exec {python} "$@"
"""


class FastClock:
    """A clock whose hours pass in seconds; the fleet lives while it sleeps."""

    def __init__(self) -> None:
        self.time = datetime.now(UTC).replace(microsecond=0) - BEGAN
        self.fleet: Fleet | None = None

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        if self.fleet is not None:
            self.fleet.live()


@dataclass
class Box:
    """One instance.

    Attributes:
        player: its metadata service, its folder and the process that its users left.
        launched_at: on the fast clock.
        beaten_until: up to when its agent has lived.
        trainers: unit -> the process that it started last.
        interrupted_at: when the spot market took it.
    """

    player: Player
    launched_at: datetime
    beaten_until: datetime
    trainers: dict[str, subprocess.Popen] = field(default_factory=dict)
    interrupted_at: datetime | None = None

    @property
    def id(self) -> str:
        return self.player.instance.id

    @property
    def folder(self) -> Path:
        """Where its root file system lies."""
        return self.player.root

    @property
    def tags(self) -> dict[str, str]:
        """Its tags, as it was last shown them."""
        answers = self.player.metadata.answers
        return {path.rpartition("/")[2]: value for path, value in answers.items() if path.startswith(TAGS)}

    def is_due(self, now: datetime) -> bool:
        """Whether the sweep asks it whether anything runs there."""
        mark = self.tags.get(TAG_REAP_AFTER)
        return mark is not None and datetime.fromisoformat(mark) <= now


class Fleet:
    """Plays everything; use it as a context, so that no process outlives it."""

    def __init__(self, clients: RegionClients, stack: str, clock: FastClock, folder: Path) -> None:
        self.clients, self.stack, self.clock, self.folder = clients, stack, clock, folder
        self.boxes: dict[str, Box] = {}
        self._alive: set[str] = set()
        self.rehearsed: Rehearsed | None = None
        self.swept_at: datetime | None = None
        self.sweeps: list[dict] = []
        self._ended = ExitStack()
        self._done_commands: set[str] = set()
        self._noticed: dict[str, datetime] = {}

    def __enter__(self) -> "Fleet":
        # moto 5.2.5 takes a command without targets for one to every instance of the region
        nobody = patch.object(Command, "_get_instance_ids_from_targets", lambda command: [])
        self._ended.enter_context(nobody)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.close()

    def stand(self, rehearsed: Rehearsed) -> None:
        """The stack is up: its function is unpacked, its instances are found from now on."""
        self.rehearsed = rehearsed
        self.function = sweeps.unpacked(rehearsed, self.folder / "function")
        self._find_instances()

    def stand_down(self) -> None:
        """The stack comes down: its schedule is gone, and its instances are on their way out."""
        self.rehearsed = None

    def live(self) -> None:
        """Whatever would have happened by now."""
        if self.rehearsed is None:
            return
        self._find_instances()
        self._wait_for_trainers()
        self._interrupt()
        self._start_units()
        self._run_commands()
        for box in self._running():
            if self.clock.now() - box.launched_at >= BEAT_AFTER and box.beaten_until == box.launched_at:
                self._beat([box])
        self._sweep()

    def _wait_for_trainers(self) -> None:
        """A trainer is a real process, whose clock is not ours: hours must not pass while it works."""
        for box in self.boxes.values():
            for process in box.trainers.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(REAL_SECONDS_A_LOOK)

    def _running(self) -> list[Box]:
        return [box for key, box in self.boxes.items() if key in self._alive]

    def _find_instances(self) -> None:
        """Moto launches at the wall's time, on demand, and boots nothing."""
        templates = self.rehearsed.outputs["launch_template_ids"]
        launched = instances.launched(self.clients, self.stack)
        self._alive = set(instances.running(launched))
        for instance in launched:
            if instance.id in self.boxes or instance.state != "running":
                continue
            backend = get_backend("ec2")[self.clients.account_id][self.clients.region]
            instances.date_back(self.clients, instance.id, self.clock.now())
            if instance.pool == "spot":
                backend.get_instance(instance.id).lifecycle = "spot"
            user_data = instances.user_data(self.clients, templates[instance.pool])
            self.boxes[instance.id] = self._booted(instance, user_data)

    def _booted(self, instance: instances.LaunchedInstance, user_data: str) -> Box:
        folder = self.folder / instance.id
        root = folder / "root"
        (folder / "keep").mkdir(parents=True)
        metadata = self._ended.enter_context(metadata_service())
        metadata.give_role(instance.pool)
        metadata.answers[f"{META_DATA}/instance-id"] = instance.id
        metadata.answers[f"{META_DATA}/instance-type"] = instance.type
        first_boot.boot(user_data, root, cast.services(metadata), folder / "boot.log")
        self._install_stand_ins(root)
        watched = self._ended.enter_context(processes.child(RESTS, folder / "people.log"))
        player = Player(Part(instance.pool, RESTS), instance, metadata, folder, root, watched)
        return Box(player, self.clock.now(), self.clock.now())

    def _install_stand_ins(self, root: Path) -> None:
        """What only a booted system has: systemd, users, the trainer's environment with its GPU."""
        programs = {
            "bin/systemctl": SYSTEMCTL,
            "bin/runuser": RUNUSER,
            "bin/install": INSTALL,
            "bin/journalctl": JOURNALCTL,
            "opt/gpu-fleet/venv/bin/python": PYTHON,
        }
        (root / "scratch").mkdir()
        words = {"{folder}": str(root), "{lib}": LIB, "{python}": sys.executable}
        for name, text in programs.items():
            executable(root / name, re.sub("|".join(words), lambda found: words[found[0]], text))

    # Run Command

    def _run_commands(self) -> None:
        backend = get_backend("ssm")[self.clients.account_id][self.clients.region]
        for command in backend._commands:
            if command.command_id in self._done_commands:
                continue
            self._done_commands.add(command.command_id)
            for invocation in command.invocations:
                self._run(self.boxes[invocation["InstanceId"]], command, invocation)

    def _run(self, box: Box, command: object, invocation: dict) -> None:
        script = self._led(box, "\n".join(command.parameters["commands"]))
        if self.clock.now() - box.launched_at >= GATE_AFTER:
            self._gate(box)
        done = ran(
            ["sh", "-c", script],
            timeout=120,
            env={**box.player.environment(), "PATH": f"{box.folder / 'bin'}:/usr/bin:/bin"},
        )
        self._start_units()
        invocation |= {
            "ResponseCode": done.returncode,
            "Status": "Success" if done.returncode == 0 else "Failed",
            "StandardOutputContent": done.stdout,
            "StandardErrorContent": done.stderr,
        }

    def _led(self, box: Box, text: str) -> str:
        return OWN.sub(lambda match: f"{box.folder}/{match[1]}", text)

    def _gate(self, box: Box) -> None:
        ready = box.folder / "run" / "gpu-fleet" / "ready.json"
        if not ready.exists():
            write_report([CheckResult("gpus", True, "1 of 1")], ready, self.clock.now())

    # units

    def _start_units(self) -> None:
        """Start what ``systemctl start`` asked for, and write down the state of what runs."""
        for box in self.boxes.values():
            for asked in (box.folder / "systemctl").glob("*"):
                if asked.suffix != ".state" and asked.read_text() == "start":
                    asked.write_text("started")
                    asked.with_name(f"{asked.name}.state").unlink(missing_ok=True)
                    box.trainers[asked.name] = self._start(box, asked.name)
            for unit, process in box.trainers.items():
                if process.poll() is not None:
                    good = process.returncode == 0
                    state = f"ActiveState={'inactive' if good else 'failed'}\nResult={process.returncode}\n"
                    (box.folder / "systemctl" / f"{unit}.state").write_text(f"{state}NRestarts=0\n")

    def _start(self, box: Box, unit: str) -> subprocess.Popen:
        """``ExecStart`` of the template unit, with its environment file, as systemd would."""
        template, _, name = unit.partition("@")
        parser = configparser.RawConfigParser(strict=False, interpolation=None)
        parser.read(box.folder / UNITS / f"{template}@.service")
        file = parser["Service"]["EnvironmentFile"].lstrip("-").replace("%i", name)
        lines = Path(self._led(box, file)).read_text().splitlines()
        options = {key: self._led(box, value) for key, _, value in (line.partition("=") for line in lines)}
        words = shlex.split(self._led(box, parser["Service"]["ExecStart"].replace("%i", name)))
        command = [part for word in words for part in _expanded(word, options)]
        own = {**box.player.environment(), **options, "HOME": str(box.folder / "scratch")}
        assert command[0] == f"{box.folder}/opt/gpu-fleet/venv/bin/python"
        command[0], own["PYTHONPATH"] = (
            sys.executable,
            f"{box.folder}/{LIB}",
        )  # as it would by itself, see PYTHON
        log = box.folder / f"trainer-{name}.log"
        child = processes.child(command, log, own, inherit=False, cwd=box.folder / "scratch")
        process = self._ended.enter_context(child)
        if unit == INTERRUPTED_UNIT and not any(unit in other.trainers for other in self.boxes.values()):
            self._ended.enter_context(slowly(process.pid, lambda: _waits_for_notice(box)))
        return process

    # spot

    def _interrupt(self) -> None:
        """What Fault Injection Service was asked: a notice, and after two minutes the end and a successor."""
        backend = get_backend("fis")[self.clients.account_id][self.clients.region]
        for key, experiment in backend.experiments.items():
            (arn,) = next(iter(experiment.targets.values()))["resourceArns"]
            box = self.boxes[arn.rpartition("/")[2]]
            if key not in self._noticed:
                self._noticed[key] = self.clock.now()
                box.player.metadata.send_spot_notice()
            elif self.clock.now() - self._noticed[key] >= NOTICE and box.interrupted_at is None:
                self._end(box)

    def _end(self, box: Box) -> None:
        box.interrupted_at = self.clock.now()
        for process in box.trainers.values():
            process.wait(120)  # two minutes of the wall's clock, not of the fast one
        self.clients("autoscaling").terminate_instance_in_auto_scaling_group(
            InstanceId=box.id, ShouldDecrementDesiredCapacity=False
        )
        self._find_instances()

    # agents and the schedule

    def _beat(self, boxes: list[Box]) -> None:
        now = self.clock.now()
        boxes = [box for box in boxes if now - box.beaten_until >= SHORTEST_LIFE]
        for box in boxes:
            box.player.mirror_tags(self.clients)
        cast.live([(box.player, box.beaten_until, now) for box in boxes])
        for box in boxes:
            box.beaten_until = now

    def _sweep(self) -> None:
        now = self.clock.now()
        running = self._running()
        for box in running:
            box.player.mirror_tags(self.clients)
        held = any(TAG_KEEP_UNTIL in box.tags for box in running if box.player.instance.pool == "people")
        # the first comes on time: the meter counts from it on
        every = SWEEP_WHILE_HELD if held and self.swept_at is not None else SWEEP_EVERY
        started = min((box.launched_at for box in self.boxes.values()), default=now)
        if now - max(started, self.swept_at or started) < every:
            return
        self.swept_at = now
        self._beat(running)
        asked = [box for box in running if box.is_due(now)]
        listening_since = time.monotonic()
        with cast.listening([box.player for box in asked], now):
            ledger = self.function.environment["GPU_FLEET_LEDGER_URI"]
            cast.wait_for_answers(self.clients, ledger, [box.id for box in asked])
            self.sweeps.append(sweeps.by_function(self.function, now))
        if asked:
            # their agents' time went on; a next life that began before it would believe none of it
            self.clock.time += timedelta(seconds=math.ceil(time.monotonic() - listening_since))
            for box in asked:
                box.beaten_until = self.clock.now()


def _waits_for_notice(box: Box) -> bool:
    """Whether the run that is to be interrupted has saved, and EC2 has not said yet that it interrupts.

    The minutes between the two are of our fast clock; the trainer's is the wall's.
    """
    has_saved = any(box.folder.glob("scratch/accept/accept-broken/checkpoints/step-*/manifest.json"))
    return has_saved and SPOT_ACTION not in box.player.metadata.answers


def _expanded(word: str, environment: dict[str, str]) -> list[str]:
    """``$NAME`` as systemd reads it: split at spaces."""
    return environment.get(word[1:], "").split() if word.startswith("$") else [word]
