"""`python -m gpu_fleet` is `gpu-fleet train`; the commands live in gpu_fleet.cli."""

import sys

from gpu_fleet.errors import MissingPackageError

if __name__ == "__main__":
    try:
        from gpu_fleet.cli import main
    except ModuleNotFoundError as error:
        missing = MissingPackageError(f"needs the Python package {error.name}, which is not here")
        sys.stderr.write(f"error: {missing}; the extra brings it: pip install '/path/to/gpu-fleet[train]'\n")
        sys.exit(missing.exit_status)
    main(prog_name="gpu-fleet train")
