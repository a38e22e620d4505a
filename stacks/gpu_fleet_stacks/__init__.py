"""The stacks room: settings, catalog and the two clouds' components; ``main`` is the program of a project."""


def main() -> None:
    """Build the selected stack in a process that Pulumi started; other users of the room need no Pulumi."""
    from gpu_fleet_stacks.program import main as build_selected  # noqa: PLC0415 - see above

    build_selected()
