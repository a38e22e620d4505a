"""The CrossGuard pack.

``pulumi preview --policy-pack stacks/gpu_fleet_stacks/crossguard`` starts it in its own environment.

The stack decides which rules refuse and which only warn; the engine gives its name in ``PULUMI_STACK``.
"""

import importlib
import sys
from pathlib import Path

# The engine starts this folder as a program, so the path does not hold the project's own packages yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu_fleet_stacks.crossguard.rules import RULES

SDK = "pulumi_policy"
HELP = (
    "The policy pack of gpu-fleet. The Pulumi CLI starts it, in an environment of its own (`make policy`), "
    "and asks it over a socket:\n\n"
    "  gpu-fleet preview STACK\n"
    "  pulumi preview --policy-pack stacks/gpu_fleet_stacks/crossguard\n\n"
    "Its rules:\n"
)


def main() -> None:
    """Serve the rules to the engine, or print the help."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.stdout.write(HELP + "".join(f"  {rule.name}: {rule.reason}\n" for rule in RULES))
        return
    try:
        pack = importlib.import_module(
            "gpu_fleet_stacks.crossguard.pack"
        )  # needs the SDK, which --help does not
    except ModuleNotFoundError as error:
        if error.name != SDK:
            raise
        sys.exit(f"error: {SDK} is not installed here: the Pulumi CLI starts this pack; see --help")
    pack.serve()


if __name__ == "__main__":
    main()
