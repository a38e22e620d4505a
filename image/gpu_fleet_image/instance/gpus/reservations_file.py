"""The file of the reservations: root writes it, everybody reads it, a reboot of the instance clears it."""

import json
from contextlib import AbstractContextManager
from datetime import datetime

from gpu_fleet_image.core import paths
from gpu_fleet_image.core.errors import CloudError
from gpu_fleet_image.core.files import alone, read_text, replace_text
from gpu_fleet_image.instance.gpus.errors import GpuReservationError
from gpu_fleet_image.instance.gpus.reservations import GpuReservations

LOCK = "gpus.lock"


def load() -> GpuReservations:
    """Return all reservations, of which some may be over; none without a file. Raises GpuReservationError."""
    path = paths.gpus_file()
    try:
        return GpuReservations.from_json(json.loads(read_text(path)), "reservations")
    except FileNotFoundError:
        return GpuReservations()
    except (OSError, ValueError, CloudError) as error:
        raise GpuReservationError(f"{path} cannot be read: {error}; root may delete it") from error


def save(state: GpuReservations) -> None:
    """Write the whole file. Raises OSError."""
    replace_text(paths.gpus_file(), f"{json.dumps(state.to_json(), indent=1)}\n")


def locked() -> AbstractContextManager[None]:
    """Lock the file, so that one of two simultaneous changes waits. Raises OSError."""
    return alone(paths.run_dir() / LOCK)


def visible_to(account: str, now: datetime) -> tuple[str, ...] | None:
    """Return what CUDA shows an account now; None for every GPU. Raises GpuReservationError."""
    return load().at(now).visible(account)
