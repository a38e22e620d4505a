"""``run gpu_fleet_image.instance.logs``: send this instance's journal to the stack's log, until SIGTERM."""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from gpu_fleet_image.core import instance_file, paths
from gpu_fleet_image.core.errors import CloudError, InstanceError
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.instance.logs.budget import UnitBudget
from gpu_fleet_image.instance.logs.buffer import LineBuffer, SizedLine
from gpu_fleet_image.instance.logs.journal import LAST_READ_S, Journal
from gpu_fleet_image.instance.logs.lines import line_of
from gpu_fleet_image.instance.logs.redact import Redactor
from gpu_fleet_image.instance.logs.service import LogService, connect
from gpu_fleet_image.instance.logs.shipper import CursorFile, Shipper

STATE = "STATE_DIRECTORY"  # environment variable that systemd sets
_METADATA_AGAIN_S = 5.0
_LAST_LINES_S = LAST_READ_S + 1.0  # until everything in the journal is in the buffer

LOG = logging.getLogger(__name__)


def read(journal: Journal, buffer: LineBuffer, service: LogService) -> None:
    """Fill the buffer from the journal until the journal is stopped, with its last entries too."""
    redact, budget = Redactor(), UnitBudget()
    try:
        for entry in journal.entries():
            line = line_of(entry, redact)
            if line is None:
                buffer.pass_over(str(entry.get("__CURSOR", "")))
                continue
            size = service.size(line)
            if budget.takes(line.unit, line.time_us, size):
                buffer.add(SizedLine(line, size))
            else:
                buffer.leave_out(line)
    finally:
        buffer.close()


def follow(service: LogService, state: Path, stop: threading.Event) -> None:
    """Send the journal's lines until ``stop``; then send once more what is left."""
    cursor = CursorFile(state)
    journal, buffer = Journal(cursor.read()), LineBuffer()
    reader = threading.Thread(target=read, args=(journal, buffer, service), daemon=True)

    def end() -> None:
        stop.wait()
        journal.stop()

    threading.Thread(target=end, daemon=True).start()
    reader.start()

    def stopped() -> bool:
        return stop.is_set() or not reader.is_alive()

    shipper = Shipper(service, buffer, cursor, stopped, stop.wait)
    if shipper.run():
        reader.join(_LAST_LINES_S)
        shipper.send_waiting()
    if not stop.is_set():
        raise CloudError("the journal is not read any more")


def connected(instance: InstanceFile, stop: threading.Event) -> LogService | None:
    """Connect to the stack's log once the metadata service answers; None where the program stops before."""
    metadata = Metadata(instance.cloud)
    while not stop.is_set():
        try:
            return connect(instance, metadata)
        except CloudError as error:
            LOG.warning("event=no-metadata reason=%r", str(error))
            stop.wait(_METADATA_AGAIN_S)
    return None


def main() -> int:
    """Run; return 1, with one line, when the instance file is wrong or the journal cannot be read."""
    logging.basicConfig(level=logging.INFO, format="time=%(asctime)s level=%(levelname)s %(message)s")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        instance = instance_file.load(paths.instance_file())
        if not instance.instance_log:
            LOG.info("event=no-log reason='the stack has logs.instances off'")
            return 0
        service = connected(instance, stop)
        if service is not None:
            follow(service, Path(os.environ[STATE]), stop)
    except InstanceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
