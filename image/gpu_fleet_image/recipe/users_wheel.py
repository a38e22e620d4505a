"""The part of a wheel that pyproject.toml cannot express: the place of the trainer's examples."""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py  # type: ignore[import-untyped] # it ships no types

# Every instance has them, so the payload needs them wherever it is made
# (image/gpu_fleet_image/recipe/places.py).
EXAMPLES, INSTALLED = Path("training/examples"), "gpu_fleet_image/examples"
KINDS = ("*.py", "*.toml")


class UsersWheel(build_py):  # type: ignore[misc] # as above
    """Build step that copies the packages and the examples into an empty folder."""

    def run(self) -> None:
        """Copy them; for a checkout that is installed in place, copy nothing."""
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib), ignore_errors=True)
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, INSTALLED)
            target.mkdir(parents=True)
            for example in (path for kind in KINDS for path in EXAMPLES.glob(kind)):
                shutil.copyfile(example, target / example.name)
