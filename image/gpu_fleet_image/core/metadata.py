"""The instance metadata service, with session tokens, on both clouds.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-v2-how-it-works.html
https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
"""

import http.client
import os
import urllib.error
import urllib.request

from gpu_fleet_image.core.errors import CloudError

TIMEOUT_S = 2.0
TOKEN_TTL_S = 21_600  # the longest both clouds allow
_HTTP_UNAUTHORIZED = 401
_HTTP_NOT_FOUND = 404
# cloud -> (environment variable, default base URL, prefix of the token headers)
SERVICES = {
    "aws": ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254", "X-aws-ec2-metadata-token"),
    "alicloud": (
        "GPU_FLEET_ALICLOUD_METADATA_ENDPOINT",
        "http://100.100.100.200",
        "X-aliyun-ecs-metadata-token",
    ),
}
# below /latest/meta-data/
_TYPE_PATHS = {"aws": "instance-type", "alicloud": "instance/instance-type"}


class Metadata:
    """Client of the metadata service, with its session token."""

    def __init__(self, cloud: str) -> None:
        variable, default, self._header = SERVICES[cloud]
        self._type_path = _TYPE_PATHS[cloud]
        self._base = os.environ.get(variable, default).rstrip("/")
        self._token = ""
        # never through a proxy: link-local
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> str | None:
        """Return the value under ``/latest/meta-data/``, or None if there is none now.

        Raises CloudError if the service does not answer.
        """
        try:
            return self._get(path)
        except urllib.error.HTTPError as error:
            if error.code == _HTTP_NOT_FOUND:
                return None
            if error.code != _HTTP_UNAUTHORIZED:
                raise CloudError(f"metadata {path}: HTTP {error.code}") from error
        self._token = ""  # it has expired, or the service has restarted
        try:
            return self._get(path)
        except urllib.error.HTTPError as error:
            if error.code == _HTTP_NOT_FOUND:
                return None
            raise CloudError(f"metadata {path}: HTTP {error.code}") from error

    def instance_type(self) -> str | None:
        """Return the instance's type; None and errors as for ``get``."""
        return self.get(self._type_path)

    def answers_without_token(self) -> bool:
        """Return whether the service answers requests without a token, say through a proxy.

        Raises CloudError.
        """
        try:
            self._send("GET", "/latest/meta-data/instance-id", {})
        except urllib.error.HTTPError:
            return False
        return True

    def _get(self, path: str) -> str:
        if not self._token:
            headers = {f"{self._header}-ttl-seconds": str(TOKEN_TTL_S)}
            self._token = self._send("PUT", "/latest/api/token", headers)
        return self._send("GET", f"/latest/meta-data/{path}", {self._header: self._token})

    def _send(self, method: str, path: str, headers: dict[str, str]) -> str:
        request = urllib.request.Request(self._base + path, method=method, headers=headers)  # noqa: S310 - http by design
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return str(answer.read().decode(errors="replace"))
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise CloudError(f"metadata service {self._base}: {error}") from error
