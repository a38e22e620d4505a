"""Client of Alibaba Cloud's products, which the functions use too; a failed call raises one sentence."""

import logging
import os
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from gpu_fleet_image.core.alicloud_credentials import Credentials
from gpu_fleet_image.core.calls import permission_of
from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.errors import ConfigurationError, log_in
from gpu_fleet_image.core.reaper_errors import AnswerError
from gpu_fleet_image.providers.alicloud.session import NO_ANSWER, Product
from gpu_fleet_stacks.clients.errors import CannotCheckError

log = logging.getLogger(__name__)
ATTEMPTS = 3  # an operator waits for the answer
NO_CREDENTIALS = f"no credentials; you need {log_in('alicloud')}"


class Alicloud:
    """Client of Alibaba Cloud, with the credentials that the Pulumi provider uses too.

    Args:
        environ: holds the credentials; by default the process's own.
        endpoint: ``host:port`` without TLS in place of the cloud, for tests.
    """

    def __init__(
        self, region: str, environ: Mapping[str, str] | None = None, endpoint: str | None = None
    ) -> None:
        self._region = region
        self._credentials = Credentials(os.environ if environ is None else environ)
        self._endpoint = f"http://{endpoint}" if endpoint else ""
        self._products: dict[str, Product] = {}

    def ask(self, product: str, action: str, **parameters: str) -> dict[str, Any]:
        """Make one call, such as ``ask("ecs", "DescribeImages", ImageId="m-1")``. Raises CannotCheckError."""
        call = self._product(product).action(action)
        log.debug("call=%s.%s", product, action)
        try:
            answer: dict[str, Any] = call(**parameters)
        except ConfigurationError as error:
            raise CannotCheckError(NO_CREDENTIALS) from error
        except AnswerError as error:
            if error.code == NO_ANSWER:
                raise CannotCheckError(f"{action}: {error.message}") from error
            if error.code in DENIED:
                raise CannotCheckError(f"denied {permission_of(call)}", error.code) from error
            raise CannotCheckError(f"{action}: {error}", error.code) from error
        return answer

    def numbered(
        self, product: str, action: str, *keys: str, size: int, **parameters: str
    ) -> Iterator[dict[str, Any]]:
        """Yield all entries of a list with numbered pages; ``keys`` as in ``listed``.

        Args:
            size: entries of a page; each list has a largest one.

        Raises CannotCheckError as in ``ask``.
        """
        seen = 0
        for number in count(1):
            page = self.ask(product, action, **parameters, PageNumber=str(number), PageSize=str(size))
            entries = listed(page, *keys)
            yield from entries
            seen += len(entries)
            if not entries or seen >= int(page["TotalCount"]):
                return

    def _product(self, name: str) -> Product:
        if name not in self._products:
            self._products[name] = Product(
                name.capitalize(),
                self._region,
                self._credentials,
                endpoint=self._endpoint,
                attempts=ATTEMPTS,
            )
        return self._products[name]


def listed(answer: dict[str, Any], *keys: str) -> list[dict[str, Any]]:
    """Return the list that an API wraps: ``listed(answer, "Images", "Image")``; empty where it is missing."""
    inner: Any = answer
    for key in keys:
        inner = (inner or {}).get(key)
    return list(inner or ())


def expects_a_number(group: Mapping[str, Any]) -> bool:
    """Return whether a group of DescribeScalingGroups has an expected number of instances."""
    return bool(group.get("EnableDesiredCapacity", group.get("DesiredCapacity") is not None))
