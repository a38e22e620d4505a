"""What `pip install` of this checkout gives users: trainer, console, and the commands about instances.

The environments (`stacks/`) and the recipe of images are files of a checkout, which `make` installs in place;
there nothing is left out. The console says of a command that is not here where it is.
"""

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py  # type: ignore[import-untyped] # it ships no types

# What instances carry too, and what their commands need; each with all below it.
PACKAGES = (
    "gpu_fleet",
    *("image.capacity", "image.console", "image.instance", "image.queue", "image.reaper", "image.runs"),
)
ROOM = "image"  # of itself no module but what makes it a package


class UsersWheel(build_py):  # type: ignore[misc] # as above
    """Copies a part of the packages into a wheel; all of them where the checkout is installed in place."""

    packages: list[str]

    def run(self) -> None:
        """Copy them into a folder that holds nothing of an earlier build."""
        if not self.editable_mode:
            self.packages = [name for name in self.packages if _is_for_users(name)]
            shutil.rmtree(Path(self.build_lib), ignore_errors=True)
        super().run()

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """(package, module, file) of a package's own modules."""
        modules: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        if package != ROOM or self.editable_mode:
            return modules
        return [row for row in modules if row[1] == "__init__"]


def _is_for_users(package: str) -> bool:
    return package == ROOM or any(
        package == allowed or package.startswith(f"{allowed}.") for allowed in PACKAGES
    )
