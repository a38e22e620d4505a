"""Client of AWS; a failed call raises an error of one sentence."""

from collections.abc import Callable, Iterator
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError

from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_stacks.clients.errors import CannotCheckError

# Permissions with another name than their call: docs.aws.amazon.com/service-authorization, AWS Budgets.
LOG_IN = "run `aws configure sso` once, then `aws sso login`, and set AWS_PROFILE"
PERMISSIONS = {"budgets:DescribeBudgets": "budgets:ViewBudget"}
LIMITS = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 3})

Clients = Callable[[str], Any]


def clients_in(region: str, emulator: str | None = None) -> Clients:
    """Return boto3 clients with the credentials of the environment, or for an emulator, which accepts any."""
    session = boto3.session.Session(region_name=region)
    if emulator is None:
        return lambda service: session.client(service, config=LIMITS)  # type: ignore[call-overload]
    return lambda service: session.client(  # type: ignore[call-overload]
        service,
        config=LIMITS,
        endpoint_url=emulator,
        aws_access_key_id="emulator",
        aws_secret_access_key="emulator",  # noqa: S106 - an emulator takes any
    )


class Aws:
    """Client of AWS.

    Args:
        clients: service -> boto3 client.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._known: dict[str, Any] = {}

    def ask(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make one call, such as ``ask("ec2", "describe_images", ImageIds=[...])``.

        Raises:
            CannotCheckError: it was denied, refused or not answered.
        """
        client = self._client(service)
        try:
            answer: dict[str, Any] = getattr(client, operation)(**arguments)
        except ClientError as error:
            raise CannotCheckError(_said(client, error)) from error
        except ResponseParserError as error:  # an emulator that lacks the call
            raise CannotCheckError(f"{operation}: the answer is none that AWS gives") from error
        except NoCredentialsError as error:
            raise CannotCheckError(f"{error}: {LOG_IN}") from error
        except BotoCoreError as error:
            raise CannotCheckError(" ".join(str(error).split())) from error
        return answer

    def pages(
        self, service: str, operation: str, key: str, mark: str = "NextToken", **arguments: Any
    ) -> Iterator[Any]:
        """Yield the items under ``key`` of all pages; ``mark`` names the page token; errors as in ``ask``."""
        place: dict[str, str] = {}
        while True:
            page = self.ask(service, operation, **arguments, **place)
            yield from page.get(key, [])
            if not page.get(mark):
                return
            place = {mark: page[mark]}

    def _client(self, service: str) -> Any:
        if service not in self._known:
            try:
                self._known[service] = self._clients(service)
            except BotoCoreError as error:
                raise CannotCheckError(str(error)) from error
        return self._known[service]


def _said(client: Any, error: ClientError) -> str:
    """Return AWS's message, or the missing permission."""
    said = error.response["Error"]
    code, message = said.get("Code", ""), said.get("Message", "")
    if code in DENIED:
        action = f"{client.meta.service_model.signing_name}:{error.operation_name}"
        return f"denied {PERMISSIONS.get(action, action)}"
    return f"{error.operation_name}: {code}: {message}"
