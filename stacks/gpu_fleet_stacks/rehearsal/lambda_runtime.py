"""Packages of AWS Lambda's Python runtime beside the standard library: boto3 and its dependencies.

docs.aws.amazon.com/lambda/latest/dg/lambda-python.html, "Runtime-included SDK versions".
"""

from importlib.metadata import files
from pathlib import Path

from gpu_fleet_stacks.rehearsal.errors import RehearsalError

PACKAGES = ("boto3", "botocore", "jmespath", "python-dateutil", "s3transfer", "six", "urllib3")


def laid_out(folder: Path) -> Path:
    """Make a folder with links to those packages of this environment, and to no others.

    Raises RehearsalError if a package is not installed.
    """
    folder.mkdir(parents=True)
    for package in PACKAGES:
        listed = files(package)
        if not listed:
            raise RehearsalError(f"{package} is not installed; run pip install -r requirements.txt")
        names = {path.parts[0] for path in listed if path.suffix == ".py"} - {"..", "__pycache__"}
        for name in names:
            place = next(path for path in listed if path.parts[0] == name)
            site = Path(str(place.locate())).parents[len(place.parts) - 1]
            (folder / name).symlink_to(site / name)
    return folder
