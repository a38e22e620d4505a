"""Stand-in for Lambda: import the handler of an unpacked archive and call it once.

Run it by path, in a fresh interpreter with ``-I -S``, which sees none of the packages installed here:
``handle_once.py FOLDER EVENT RUNTIME [TIME]``. RUNTIME holds the packages that Lambda provides, and TIME
replaces the present time. The last line of the output is the answer.
"""

import importlib
import json
import sys
from datetime import datetime, timedelta
from pathlib import Path

REMAINING_MS = 300_000


class Context:
    """The part of Lambda's context object that the handler reads."""

    aws_request_id = "rehearsal"

    @staticmethod
    def get_remaining_time_in_millis() -> int:
        """Return the time left at the start of a function with a timeout of five minutes."""
        return REMAINING_MS


def main(folder: str, event: str, runtime: str, time: str = "") -> None:
    """Call the handler; print its answer after its log."""
    sys.path[:] = [folder, *sys.path, runtime]
    handler = importlib.import_module("gpu_fleet_image.controllers.sweep.handler")
    if not Path(str(handler.__file__)).is_relative_to(folder):
        raise SystemExit(f"the handler came from {handler.__file__}, not from {folder}")
    if time:
        now = datetime.fromisoformat(time)
        ends_at = now + timedelta(milliseconds=REMAINING_MS)
        answer = handler.run(json.loads(event), ends_at, f"lambda {Context.aws_request_id}", now)
    else:
        answer = handler.handle(json.loads(event), Context())
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
