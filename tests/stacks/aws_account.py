"""Fake AWS account with fixed answers: boto3 clients without a network, checked by the real API's shapes."""

import copy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import boto3
from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError
from botocore.validate import ParamValidator

OK, FORBIDDEN = 200, 403


@dataclass(frozen=True)
class Refusal:
    """An error in place of an answer."""

    code: str = "AccessDeniedException"
    message: str = "not for you"


@cache
def _made(service: str) -> Any:
    return boto3.client(
        service,  # type: ignore[call-overload]
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


@dataclass
class Account:
    """Answers by ``service:Operation``; another operation cannot be reached.

    Attributes:
        answers: an answer, a refusal, or a function from the request's parameters to one of them.
        asked: every call so far: its name and parameters.
    """

    answers: dict[str, Any]
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def client(self, service: str) -> Any:
        """Return a boto3 client whose calls are answered here: a copy of one that a process makes once."""
        made = _made(service)
        client = object.__new__(type(made))  # it knows no copy, for it answers for every attribute
        vars(client).update(vars(made), meta=copy.copy(made.meta))
        client.meta.events = copy.copy(client.meta.events)
        client.meta.events.register("provide-client-params", self._remember(service))
        client.meta.events.register("before-call", self._reply(service))
        return client

    def _remember(self, service: str):
        def handle(params, model, **_):
            self.asked.append((f"{service}:{model.name}", dict(params)))

        return handle

    def _reply(self, service: str):
        def handle(model, **_):
            name, params = self.asked[-1]
            answer = self.answers.get(f"{service}:{model.name}")
            if callable(answer):
                answer = answer(params)
            if answer is None:
                raise EndpointConnectionError(endpoint_url=f"https://{service}.test")
            if isinstance(answer, Refusal):
                error = {"Error": {"Code": answer.code, "Message": answer.message}}
                return AWSResponse("https://test", FORBIDDEN, {}, None), error
            if model.output_shape is not None:
                report = ParamValidator().validate(answer, model.output_shape)
                assert not report.has_errors(), f"{name}: {report.generate_report()}"
            return AWSResponse("https://test", OK, {}, None), answer

        return handle
