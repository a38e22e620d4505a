"""Process 1 of a guest: writes the files of the user data, runs the bootstrap's steps, then their units.

It plays systemd's part for a unit: ExecStartPre lines, ExecStart, and a restart when it has ended.
"""

import json
import os
import runpy
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

GIVEN = Path("/run/guest")
STARTED = GIVEN / "started"
UNITS = Path("/etc/systemd/system")
STEPS = ("15-agent", "75-queue")
# What systemd starts once somebody asks on the socket.
CREDENTIALS = ("gpu-credentials.socket", "gpu-credentials.service", "gpu-fleet-credentials", "127.0.0.1:823")
# Of those the steps start; the reaper's agent has tests of its own.
PLAYED = (
    *("gpu-accounts.service", "gpu-ready.service"),
    *("gpu-queue-node.service", "gpu-queue-controller.service", "gpu-queue-watch.service"),
    "gpu-queue-accounting.service",
)
SYSTEMCTL = f"""#!/bin/sh
case "$*" in
    "restart munge.service")
        [ ! -e /run/munge/munged.pid ] || kill "$(cat /run/munge/munged.pid)"
        while [ -e /run/munge/munged.pid ]; do sleep 0.1; done
        mkdir -p /run/munge && chown munge:munge /run/munge
        exec setpriv --reuid munge --regid munge --clear-groups /usr/sbin/munged
        ;;
    "restart mariadb.service")
        [ ! -e /run/mysqld/mysqld.pid ] || kill "$(cat /run/mysqld/mysqld.pid)"
        while [ -e /run/mysqld/mysqld.pid ]; do sleep 0.1; done
        mkdir -p /run/mysqld && chown mysql:mysql /run/mysqld
        setsid /usr/sbin/mariadbd --user=mysql --pid-file=/run/mysqld/mysqld.pid </dev/null >/dev/null 2>&1 &
        until mariadb-admin ping >/dev/null 2>&1; do sleep 0.1; done
        ;;
    "start --no-block "*) shift 2; printf '%s\\n' "$@" >>{STARTED} ;;
esac
"""


def write_files() -> None:
    config = json.loads((GIVEN / "user-data.json").read_text())
    for file in config["write_files"]:
        path = Path(file["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["content"])
        path.chmod(int(file["permissions"], 8))


def bootstrap() -> None:
    """Fetch the payload by the user data's own program, and run the recipe's steps for the queue."""
    program = runpy.run_path("/usr/local/libexec/gpu-fleet/fetch")
    folder = program["bring"](json.loads(Path("/etc/gpu-fleet/payload.json").read_text()))
    environment = {**os.environ, "TARGET": "aws", "BOOTSTRAP": "1", "WHEELS": "index"}
    for step in STEPS:
        subprocess.run(["bash", f"{folder}/provision.sh", step], env=environment, check=True)


def trainer(environment: str) -> None:
    """Link this computer's environment in the place of the one that the step 70-trainer makes."""
    Path("/opt/gpu-fleet/venv").symlink_to(environment)
    for folder in (*Path(environment).parents, *Path(f"{environment}/bin/python").resolve().parents):
        folder.chmod(folder.stat().st_mode | 0o111)  # users reach it; a copy of root's folder alone changes


def serve(unit: str) -> None:
    lines = [line.partition("=") for line in (UNITS / unit).read_text().splitlines() if "=" in line]
    before = [command for key, _, command in lines if key == "ExecStartPre" and not command.startswith("-")]
    (main,) = [command for key, _, command in lines if key == "ExecStart"]
    once = ("Type", "=", "oneshot") in lines
    while True:
        done = 1
        for command in [*before, main]:
            done = subprocess.run(shlex.split(command.lstrip("+-")), check=False).returncode
            if done != 0:
                break
        print(f"event=unit-ended unit={unit} status={done}", flush=True)  # noqa: T201 - the guest's log
        if once and done == 0:
            return
        time.sleep(1)


def serve_credentials() -> None:
    """Run the service of credentials as the unit's account, at the socket's address."""
    _, unit, account, address = CREDENTIALS
    lines = (UNITS / unit).read_text().splitlines()
    (command,) = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
    given = [f"--setenv={name}" for name in os.environ if name.startswith("AWS_")]
    listens = ["systemd-socket-activate", f"--listen={address}", *given]
    own = ["setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups"]
    while True:
        done = subprocess.run([*listens, *own, *shlex.split(command)], check=False).returncode
        print(f"event=unit-ended unit={unit} status={done}", flush=True)  # noqa: T201 - the guest's log
        time.sleep(1)


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)
    program = Path("/usr/bin/systemctl")
    program.unlink(missing_ok=True)
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)
    Path("/run/gpu-fleet").mkdir(exist_ok=True)
    write_files()
    bootstrap()
    trainer(os.environ["GUEST_TRAINER"])
    started = STARTED.read_text().split()
    if CREDENTIALS[0] in started:
        threading.Thread(target=serve_credentials, daemon=True).start()
    for unit in started:
        if unit in PLAYED:
            threading.Thread(target=serve, args=(unit,), daemon=True).start()
    threading.Event().wait()


main()
