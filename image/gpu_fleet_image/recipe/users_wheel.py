"""The part of a wheel that pyproject.toml cannot express: files from outside of the packages."""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py  # type: ignore[import-untyped] # it ships no types

# Pattern -> its folder in the wheel. Every instance has the examples, so the payload needs them wherever it
# is made (image/gpu_fleet_image/recipe/places.py); `gpu-fleet upgrade-notes` reads the changes.
INSTALLED = {
    "training/examples/*.py": "gpu_fleet_image/examples",
    "training/examples/*.toml": "gpu_fleet_image/examples",
    "docs/changes/*.md": "gpu_fleet_stacks/releases/changes",
    "CHANGELOG.md": "gpu_fleet_stacks/releases",
}


class UsersWheel(build_py):  # type: ignore[misc] # as above
    """Build step that copies the packages and the files above into an empty folder."""

    def run(self) -> None:
        """Copy them; for a checkout that is installed in place, copy nothing."""
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib), ignore_errors=True)
        super().run()
        for pattern, folder in INSTALLED.items() if not self.editable_mode else ():
            target = Path(self.build_lib, folder)
            target.mkdir(parents=True, exist_ok=True)
            for path in Path().glob(pattern):
                shutil.copyfile(path, target / path.name)
