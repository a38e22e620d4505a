"""Stand-in for the engine of Pulumi's SDK: it creates supported resources in moto, and records the rest."""

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from pulumi.runtime import MockCallArgs, MockResourceArgs, Mocks, rpc
from pulumi.runtime.mocks import MockMonitor

from gpu_fleet_stacks.rehearsal import values
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.errors import CreationError, RehearsalError
from gpu_fleet_stacks.rehearsal.existing import Answers
from gpu_fleet_stacks.rehearsal.invokes import answer
from gpu_fleet_stacks.rehearsal.recorded_outputs import recorded
from gpu_fleet_stacks.rehearsal.registrations import Registration, RegistrationOutcome, Registrations

Creator = Callable[[RegionClients, str, values.Inputs], values.Created]

# Refusals of moto and of boto3, and internal errors that moto answers with an HTML page.
REFUSALS = (ClientError, BotoCoreError, ResponseParserError)
PROVIDER_PREFIX = "pulumi:providers:"
AWS_PROVIDER = f"{PROVIDER_PREFIX}aws"

# MockResourceArgs has neither parent nor options, so the monitor stores the whole request and its URN here
# for new_resource, which runs in the same call.
_request: ContextVar[Any] = ContextVar("request")


class RehearsalMocks(Mocks):
    """Answers the requests of a program to its providers.

    Attributes:
        failure: the first resource that was refused, or None.
    """

    def __init__(
        self,
        clients: RegionClients,
        creators: Mapping[str, Creator],
        records: Registrations,
        answers: Answers | None = None,
    ) -> None:
        self.records = records
        self._answers = answers or {}
        self.failure: RehearsalError | None = None
        self._clients = clients
        self._creators = creators
        self._provider_regions: dict[str, str] = {}

    def new_resource(self, args: MockResourceArgs) -> values.Created:
        """Create or record one resource; Pulumi calls it once all its inputs are known.

        Raises CreationError, which names the resource and moto's refusal.
        """
        inputs = values.plain(args.inputs)
        started = time.perf_counter()
        try:
            made = self._made(args, inputs)
        except RehearsalError as error:
            self.failure = self.failure or error
            raise
        self._record(args, inputs, made, time.perf_counter() - started)
        identifier, outputs, _ = made
        secret = values.secret_keys(args.inputs)
        return identifier, {
            key: rpc.wrap_rpc_secret(value) if key in secret else value for key, value in outputs.items()
        }

    def call(self, args: MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        """Answer a provider function.

        Raises:
            UnknownInvokeError: the message names the function and the known ones.
            CreationError: moto refused the call behind it.
        """
        known = self._answers.get(args.token)
        if known is not None:
            return known(values.plain(args.args)), []
        try:
            return answer(self._clients_for(args.provider, {}), args.token, values.plain(args.args)), []
        except REFUSALS as error:
            self.failure = self.failure or CreationError(args.token, "call", _said(error))
            raise self.failure from error
        except RehearsalError as error:
            self.failure = self.failure or error
            raise

    def _made(
        self, args: MockResourceArgs, inputs: dict[str, Any]
    ) -> tuple[str, dict[str, Any], RegistrationOutcome]:
        if not args.custom and not args.resource_id:
            return "", inputs, RegistrationOutcome.GROUPED
        if args.typ.startswith(PROVIDER_PREFIX):
            return f"{args.name}-id", inputs, RegistrationOutcome.GROUPED
        if args.resource_id:  # read or imported: it exists elsewhere
            return args.resource_id, inputs, RegistrationOutcome.RECORDED
        clients = self._clients_for(args.provider or "", inputs)
        creator = self._creators.get(args.typ)
        if creator is None:
            return *recorded(clients, args.typ, args.name, inputs), RegistrationOutcome.RECORDED
        try:
            identifier, outputs = creator(clients, args.name, inputs)
        except REFUSALS as error:
            raise CreationError(args.typ, args.name, _said(error)) from error
        except KeyError as error:
            said = f"neither its inputs nor moto's answer has {error}"
            raise CreationError(args.typ, args.name, said) from error
        return identifier, {"region": clients.region} | outputs, RegistrationOutcome.CREATED

    def _clients_for(self, provider: str, inputs: Mapping[str, Any]) -> RegionClients:
        return self._clients.at(inputs.get("region") or self._provider_regions.get(provider))

    def _record(
        self,
        args: MockResourceArgs,
        inputs: dict[str, Any],
        made: tuple[str, dict[str, Any], RegistrationOutcome],
        seconds: float,
    ) -> None:
        identifier, outputs, outcome = made
        request, urn = _request.get()
        if args.typ == AWS_PROVIDER and "region" in inputs:
            self._provider_regions[f"{urn}::{identifier}"] = inputs["region"]
        self.records.add(
            Registration(
                type=args.typ,
                name=args.name,
                urn=urn,
                parent=request.parent,
                inputs=inputs,
                outputs=outputs,
                id=identifier,
                outcome=outcome,
                # a read has no options
                protected=getattr(request, "protect", False),
                retained=getattr(request, "retainOnDelete", False),
                deleted_with=getattr(request, "deletedWith", ""),
                delete_timeout=request.customTimeouts.delete if hasattr(request, "customTimeouts") else "",
                dependencies=tuple(request.dependencies),
                ignored_changes=tuple(getattr(request, "ignoreChanges", ())),
                provider=request.provider,
                seconds=seconds,
            )
        )


class RehearsalMonitor(MockMonitor):
    """The SDK's own mock monitor, which also keeps each whole request: parent, protect, dependencies."""

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - the SDK's name
        """Register a resource, with its request stored."""
        return self._with_request(request, super().RegisterResource)

    def ReadResource(self, request: Any) -> Any:  # noqa: N802 - the SDK's name
        """Read a resource, with its request stored."""
        return self._with_request(request, super().ReadResource)

    def _with_request(self, request: Any, do: Callable[[Any], Any]) -> Any:
        token = _request.set((request, self.make_urn(request.parent, request.type, request.name)))
        try:
            return do(request)
        finally:
            _request.reset(token)


def _said(error: Exception) -> str:
    """Return moto's message in one line, without boto3's text about retries."""
    if isinstance(error, ClientError):
        said = error.response["Error"]
        return f"{error.operation_name}: {said.get('Code', '')}: {said.get('Message', '')}"
    return " ".join(str(error).split())
