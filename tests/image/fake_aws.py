"""moto in this process, with its own time and fake credentials."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from types import SimpleNamespace

import moto.core.utils
import pytest
from moto import mock_aws

from tests.image.moto_fleet import STARTED


class MotoTime(datetime):
    """Clock that stands still."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return STARTED.astimezone(tz)


@contextmanager
def fake_aws(*, frozen: bool = True) -> Iterator[None]:
    """Connect every boto3 client that is created in the block to moto, whose time stands still or not."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            patch.setenv(name, "testing")
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        if frozen:
            patch.setattr(moto.core.utils, "datetime", SimpleNamespace(datetime=MotoTime))
        with mock_aws():
            yield
