"""The part of a wheel that setuptools cannot say in pyproject.toml: where the trainer's examples lie."""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py  # type: ignore[import-untyped] # it ships no types

# Every instance has them, so the payload needs them wherever it is made
# (image/gpu_fleet_image/recipe/places.py).
EXAMPLES, INSTALLED = Path("training/examples"), "gpu_fleet_image/examples"
KINDS = ("*.py", "*.toml")


class UsersWheel(build_py):  # type: ignore[misc] # as above
    """Copies the packages and the examples into a folder that holds nothing of an earlier build."""

    def run(self) -> None:
        """Copy them; of a checkout that is installed in place nothing is copied."""
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib), ignore_errors=True)
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, INSTALLED)
            target.mkdir(parents=True)
            for example in (path for kind in KINDS for path in EXAMPLES.glob(kind)):
                shutil.copyfile(example, target / example.name)
