#!/usr/bin/env python3
"""Fetch the payload at first boot with the instance's role, check its hash, unpack it, run its recipe.

Uses the standard library and Python 3.6's syntax, so that it can name a Python older than 3.11. Exit
status: 0 done, 1 try again, 2 another try would not help, 3 the recipe says that a step is left.
"""

import datetime
import gzip
import hashlib
import hmac
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from typing import Dict, Tuple

OLDEST_PYTHON = (3, 11)
TIMEOUT_S = 10
CHUNK_BYTES = 1 << 20
ROOT = os.environ.get("GPU_FLEET_ROOT", "/")
HOME = os.path.join(ROOT, "opt/gpu-fleet")
NOTHING = hashlib.sha256(b"").hexdigest()
# metadata service, header of its tokens, where it has the role's keys, their names
CLOUDS = {
    "aws": (
        os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254"),
        "X-aws-ec2-metadata-token",
        "iam/security-credentials/",
        ("AccessKeyId", "SecretAccessKey", "Token"),
    ),
    "alicloud": (
        os.environ.get("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", "http://100.100.100.200"),
        "X-aliyun-ecs-metadata-token",
        "ram/security-credentials/",
        ("AccessKeyId", "AccessKeySecret", "SecurityToken"),
    ),
}


class BootError(Exception):
    """An error of one line; the unit tries again unless it is final."""

    status = 1


class FinalError(BootError):
    """Another try would end the same way."""

    status = 2


def log(event: str, **facts: object) -> None:
    """Write one structured line to the journal."""
    print("event=" + event, *("%s=%r" % fact for fact in facts.items()), flush=True)


def role_keys(cloud: str) -> Tuple[str, ...]:
    """Return the keys of the instance's role: id, secret, token."""
    base, header, place, names = CLOUDS[cloud]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(path: str, headers: Dict[str, str], method: str = "GET") -> str:
        request = urllib.request.Request(base + "/latest/" + path, headers=headers, method=method)
        return str(opener.open(request, timeout=TIMEOUT_S).read().decode())

    try:
        token = {header: ask("api/token", {header + "-ttl-seconds": "21600"}, "PUT")}
        role = ask("meta-data/" + place, token).split()[0]
        answer = json.loads(ask("meta-data/" + place + role, token))
        return tuple(answer[name] for name in names)
    except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
        raise BootError("no keys of the instance's role from %s: %r" % (base, error))


def address(payload: Dict[str, str]) -> str:
    """Return the object's URL: the bucket's own host, or an emulator's path."""
    cloud, region, bucket = payload["cloud"], payload["region"], payload["bucket"]
    name = "AWS_ENDPOINT_URL" if cloud == "aws" else "GPU_FLEET_ALICLOUD_OSS_ENDPOINT"
    if os.environ.get(name):
        start = os.environ[name].rstrip("/") + "/" + bucket
    elif cloud == "aws":
        start = "https://%s.s3.%s.amazonaws.com" % (bucket, region)
    else:
        start = "https://%s.s3.oss-%s-internal.aliyuncs.com" % (bucket, region)
    return start + "/" + urllib.parse.quote(payload["key"], safe="/-_.~")


def signed(url: str, region: str, keys: Tuple[str, ...], now: datetime.datetime) -> Dict[str, str]:
    """Return a GET's headers: docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html."""
    key_id, secret, token = keys
    parts = urllib.parse.urlsplit(url)
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    scope = "/".join((stamp[:8], region, "s3", "aws4_request"))
    headers = {"host": parts.netloc, "x-amz-content-sha256": NOTHING, "x-amz-date": stamp}
    if token:
        headers["x-amz-security-token"] = token
    names = ";".join(sorted(headers))
    lines = "".join("%s:%s\n" % (name, headers[name]) for name in sorted(headers))
    request = "\n".join(("GET", parts.path, "", lines, names, NOTHING))
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, digest))
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    headers["Authorization"] = "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s" % (
        key_id,
        scope,
        names,
        signature,
    )
    return headers


def download(payload: Dict[str, str], keys: Tuple[str, ...], target: str) -> None:
    """Stream the object through gunzip into a file, and check the hash of the user data."""
    url = address(payload)
    now = datetime.datetime.now(datetime.timezone.utc)
    request = urllib.request.Request(url, headers=signed(url, payload["region"], keys, now))
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer, open(target, "wb") as file:
            tar = gzip.GzipFile(fileobj=answer)
            for chunk in iter(lambda: tar.read(CHUNK_BYTES), b""):
                digest.update(chunk)
                file.write(chunk)
    except urllib.error.HTTPError as error:
        said = error.read(2000).decode(errors="replace")
        code = said.partition("<Code>")[2].partition("</Code>")[0]
        why = (
            "the payload is not there, or the role may not read it" if error.code in (403, 404) else "refused"
        )
        raise BootError("%s: HTTP %s %s: %s" % (url, error.code, code, why))
    except (
        urllib.error.URLError,
        http.client.HTTPException,
        ConnectionError,
        TimeoutError,
        ssl.SSLError,
    ) as error:
        raise BootError("no way to the bucket: %s: %s" % (url, getattr(error, "reason", error)))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BootError("%s: no whole gzip: %s" % (url, error))
    if digest.hexdigest() != payload["sha256"]:
        raise BootError(
            "%s: sha256 is %s, the user data has %s" % (url, digest.hexdigest(), payload["sha256"])
        )


def unpack(archive: str, folder: str) -> None:
    """Write plain files below the folder; refuse links, devices and paths outside it."""
    with tarfile.open(archive, "r:") as opened:
        for member in opened:
            source = opened.extractfile(member) if member.isfile() else None
            if source is None or member.name.startswith("/") or ".." in member.name.split("/"):
                raise BootError("payload: %r is no plain file inside of it" % member.name)
            path = os.path.join(folder, member.name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)
            os.chmod(path, 0o755 if member.mode & 0o100 else 0o644)


def bring(payload: Dict[str, str]) -> str:
    """Fetch and unpack; return the payload's folder."""
    archive, folder = os.path.join(HOME, "payload.tar"), os.path.join(HOME, "payload")
    try:
        os.makedirs(HOME, exist_ok=True)
        download(payload, role_keys(payload["cloud"]), archive)
        shutil.rmtree(folder, ignore_errors=True)
        unpack(archive, folder)
        os.remove(archive)
    except OSError as error:
        raise BootError("%s: %s" % (error.filename or HOME, error.strerror or error))
    return folder


def main() -> int:
    """Run all steps; return the unit's exit status (see above)."""
    try:
        if sys.version_info < OLDEST_PYTHON:
            raise FinalError(
                "Python %s: 3.11 or newer is needed; boot another image" % sys.version.split()[0]
            )
        with open(os.path.join(ROOT, "etc/gpu-fleet/payload.json")) as file:
            payload = json.load(file)
        log("bootstrap", bucket=payload["bucket"], key=payload["key"])
        folder = bring(payload)
    except BootError as error:
        log("bootstrap-failed", reason=str(error))
        return error.status
    environment = dict(os.environ, TARGET=payload["cloud"], WHEELS=payload["wheels"], GPU_FLEET_ROOT=ROOT)
    return subprocess.call([sys.executable, os.path.join(folder, "bootstrap.py")], env=environment)


if __name__ == "__main__":
    sys.exit(main())
