"""Fake Alibaba Cloud account with fixed answers, behind a server of this computer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gpu_fleet_image.core.alicloud_credentials import KEY_ID, SECRET
from gpu_fleet_stacks.clients.alicloud import Alicloud
from tests.answering import Answer, Asked, answering
from tests.image.alicloud_api import refused

OK, FORBIDDEN, SERVER_ERROR = 200, 403, 500


@dataclass(frozen=True)
class Refusal:
    """An error in place of an answer."""

    code: str = "Forbidden.RAM"
    message: str = "User not authorized to operate on the specified resource."


@dataclass
class Account:
    """Answers by action; an action without one is refused.

    Attributes:
        answers: an answer, a refusal, or a function from the request's parameters to one of them.
        asked: every call so far: its action and parameters.
        unsigned: calls that came without a signature.
    """

    answers: dict[str, Any]
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    unsigned: list[str] = field(default_factory=list)

    def reply(self, parameters: dict[str, str]) -> tuple[int, dict[str, Any]]:
        action = parameters["Action"]
        self.asked.append((action, parameters))
        if parameters.get("AccessKeyId") != "test" or not parameters.get("Signature"):
            self.unsigned.append(action)
        answer = self.answers.get(action, Refusal("InvalidAction.NotFound", "no such action"))
        if callable(answer):
            answer = answer(parameters)
        if isinstance(answer, Refusal):
            return FORBIDDEN, {"Code": answer.code, "Message": answer.message, "RequestId": "test"}
        if odd := refused(action, parameters, answer):
            return SERVER_ERROR, {"Code": "Undocumented", "Message": odd, "RequestId": "test"}
        return OK, {"RequestId": "test", **answer}


@contextmanager
def serving(account: Account, region: str = "cn-shenzhen") -> Iterator[Alicloud]:
    """Yield the official client, connected to the account."""

    def answer(request: Asked) -> Answer:
        sent = f"{urlsplit(request.path).query}&{request.body.decode()}"
        code, said = account.reply(dict(parse_qsl(sent)))
        return code, {"Content-Type": "application/json"}, json.dumps(said).encode()

    with answering(answer) as url:
        yield Alicloud(region, {KEY_ID: "test", SECRET: "test"}, url.removeprefix("http://"))
