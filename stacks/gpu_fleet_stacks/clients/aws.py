"""Client of AWS; a failed call raises an error of one sentence."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError

from gpu_fleet_image.core.calls import permission_of
from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.errors import ConfigurationError, log_in
from gpu_fleet_image.providers.aws import session
from gpu_fleet_stacks.clients.errors import CannotCheckError, request_id

log = logging.getLogger(__name__)

ATTEMPTS = 3  # an operator waits for the answer
EMULATOR_TAKES = {"aws_access_key_id": "emulator", "aws_secret_access_key": "emulator"}  # any
Clients = Callable[[str], Any]


def clients_in(region: str, emulator: str | None = None) -> Clients:
    """Return boto3 clients with the credentials of the environment, or for an emulator, which takes any."""
    keys = {} if emulator is None else {"endpoint_url": emulator, **EMULATOR_TAKES}
    return lambda service: session.client(service, region, ATTEMPTS, **keys)


class Aws:
    """Client of AWS."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._known: dict[str, Any] = {}

    def ask(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make one call, such as ``ask("ec2", "describe_instances", InstanceIds=[...])``.

        Raises CannotCheckError if it was denied, refused or not answered.
        """
        call = getattr(self._client(service), operation)
        log.debug("call=%s.%s", service, operation)
        try:
            answer: dict[str, Any] = call(**arguments)
        except ClientError as error:
            said = error.response["Error"]
            code = str(said.get("Code", ""))
            reason = f"{error.operation_name}: {code}: {said.get('Message', '')}"
            denied = f"denied {permission_of(call)}"
            raise CannotCheckError(
                denied if code in DENIED else reason, code, request_id(error.response)
            ) from error
        except ResponseParserError as error:  # an emulator that lacks the call
            raise CannotCheckError(f"{operation}: the answer is none that AWS gives") from error
        except NoCredentialsError as error:
            raise CannotCheckError(f"{error}; you need {log_in('aws')}") from error
        except BotoCoreError as error:
            raise CannotCheckError(" ".join(str(error).split())) from error
        return answer

    def pages(
        self,
        service: str,
        operation: str,
        key: str,
        mark: str = "NextToken",
        asked: str = "",
        **arguments: Any,
    ) -> Iterator[Any]:
        """Yield the items under ``key`` of all pages; errors as in ``ask``.

        Args:
            asked: its name in the request, where that differs.
        """
        place: dict[str, str] = {}
        while True:
            page = self.ask(service, operation, **arguments, **place)
            yield from page.get(key, [])
            if not page.get(mark):
                return
            place = {asked or mark: page[mark]}

    def instances(self, filters: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the instances that DescribeInstances' filters choose; errors as in ``ask``."""
        for reservation in self.pages("ec2", "describe_instances", "Reservations", Filters=filters):
            yield from reservation["Instances"]

    def _client(self, service: str) -> Any:
        if service not in self._known:
            try:
                self._known[service] = self._clients(service)
            except (BotoCoreError, ConfigurationError) as error:
                raise CannotCheckError(str(error)) from error
        return self._known[service]
