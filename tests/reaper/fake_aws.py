"""moto in this process, with a time of its own and credentials that lead nowhere else."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from types import SimpleNamespace

import moto.core.utils
import pytest
from moto import mock_aws

from tests.reaper.moto_fleet import STARTED


class MotoTime(datetime):
    """Stands still."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """When everything is started."""
        return STARTED.astimezone(tz)


@contextmanager
def fake_aws() -> Iterator[None]:
    """Every boto3 client made inside talks to moto."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            patch.setenv(name, "testing")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        patch.setattr(moto.core.utils, "datetime", SimpleNamespace(datetime=MotoTime))
        with mock_aws():
            yield
