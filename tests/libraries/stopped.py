"""Runs an example as a rank of torchrun; the last rank hears a notice after so many steps, or none for 0.

python stopped.py EXAMPLE DIRECTORY STOP_AT
"""

import os
import runpy
import sys

from gpu_fleet.integrations import guard
from gpu_fleet.preemption.interrupt import Interruption, Reason

STOP_AT = int(sys.argv[3]) if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1 else 0


class Notified(Interruption):
    """Is asked once a step."""

    asked = 0

    @property
    def reason(self):
        self.asked += 1
        return Reason.SPOT_NOTICE if 0 < STOP_AT <= self.asked else Reason.NONE


guard.Interruption = Notified
sys.argv = sys.argv[1:3]
runpy.run_path(sys.argv[0], run_name="example")
