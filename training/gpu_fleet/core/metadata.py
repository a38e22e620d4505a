"""The cloud's metadata service: facts about this instance."""

import json
import logging
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException

from gpu_fleet.core.errors import LaunchError

TIMEOUT_S = 1.0  # for one request to the metadata service, which is on the same host
TOKEN_TTL_S = 21600  # the longest that IMDSv2 grants
ROLES = "ram/security-credentials/"  # of Alibaba Cloud's service
OK = 200  # HTTP
NO_TOKEN = (401, 403)  # HTTP statuses of both clouds for a token that is missing or has expired
ATTEMPTS = 5  # of a second each: the service may be slow on an instance that has just started
log = logging.getLogger(__name__)
CREDENTIALS_URI = "ALIBABA_CLOUD_CREDENTIALS_URI"  # source of the keys of an instance's users


@dataclass(frozen=True)
class ThisInstance:
    """Facts about this instance."""

    instance_id: str
    instance_type: str
    address: str  # private IPv4


@dataclass(frozen=True)
class Service:
    """The metadata service of a cloud."""

    variable: str  # environment variable that overrides the address
    address: str
    token_header: str
    type_path: str
    address_path: str


# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
# https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
SERVICES = {
    "aws": Service(
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "http://169.254.169.254",
        "X-aws-ec2-metadata-token",
        "instance-type",
        "local-ipv4",
    ),
    "alicloud": Service(
        "GPU_FLEET_ALICLOUD_METADATA_ENDPOINT",
        "http://100.100.100.200",
        "X-aliyun-ecs-metadata-token",
        "instance/instance-type",
        "private-ipv4",
    ),
}


class MetadataClient:
    """Client of the metadata service. It uses session tokens, which both clouds require."""

    def __init__(self, cloud: str, base_url: str = "") -> None:
        self.service = SERVICES[cloud]
        self._base = (base_url or os.environ.get(self.service.variable, self.service.address)).rstrip("/")
        self._token = ""

    def ask(self, path: str) -> tuple[int, str]:
        """Ask once for the text at `path` below /latest/meta-data/. Return status and text, as `ask` does."""
        url, header = f"{self._base}/latest/meta-data/{path}", self.service.token_header
        status, text = ask(url, {header: self._token}) if self._token else (NO_TOKEN[0], "")
        if status in NO_TOKEN:
            ttl = {f"{header}-ttl-seconds": str(TOKEN_TTL_S)}
            status, token = ask(f"{self._base}/latest/api/token", ttl, "PUT")
            self._token = token.strip() if status == OK else ""
            if not self._token:
                return (0 if status == OK else status), ""
            status, text = ask(url, {header: self._token})
        return status, text

    def read(self, path: str) -> str:
        for _ in range(ATTEMPTS):
            status, text = self.ask(path)
            if status:
                break
        if status != OK:
            said = f"answers {status}" if status else "does not answer"
            url = f"{self._base}/latest/meta-data/{path}"
            raise LaunchError(f"{url}: the metadata service {said}; --alone skips peer discovery")
        return text.strip()

    def role_keys(self) -> dict[str, str]:
        """Return the keys of an instance's RAM role; raises LaunchError, ValueError or LookupError."""
        # users of an instance have a role of their own; root has the instance's
        if uri := os.environ.get(CREDENTIALS_URI):
            status, text = ask(uri, {}, attempts=ATTEMPTS)
            if status != OK:
                raise LaunchError(
                    f"{CREDENTIALS_URI} {uri}: {f'{status}: {text}' if status else 'no answer'}"
                )
        else:
            text = self.read(ROLES + self.read(ROLES).splitlines()[0])
        keys: dict[str, str] = json.loads(text)
        return keys

    def instance(self) -> ThisInstance:
        return ThisInstance(
            instance_id=self.read("instance-id"),
            instance_type=self.read(self.service.type_path),
            address=self.read(self.service.address_path),
        )


def ask(url: str, headers: dict[str, str], method: str = "GET", *, attempts: int = 1) -> tuple[int, str]:
    """Send a request. Return status and body; status 0 if there is no answer, which is no error."""
    request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310 - http to the own host
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(attempts):
        try:
            try:
                answer = opener.open(request, timeout=TIMEOUT_S)
            except urllib.error.HTTPError as refusal:
                answer = refusal
            with answer:
                return answer.status, answer.read().decode(errors="replace")
        except (OSError, ValueError, HTTPException) as error:
            log.debug("event=metadata-silent url=%s error=%r", url, str(error))
    return 0, ""
