"""The check of signatures that stands in for AWS: it takes what botocore signs, and nothing that differs."""

from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.image.stand_ins.signatures import Keys, SignatureError, check

KEYS = Keys("ASIAROLE", "secret", "token")
OTHER = Keys("ASIAOTHER", "secret", "token")
BUCKET = "https://records.s3.us-east-1.amazonaws.com/image/a%20b.tar.gz?versionId=1&x=%2F"
MONITORING = "https://monitoring.us-east-1.amazonaws.com/"


def signed(signer, service, method, url, body=b"", *, keys=KEYS):
    """(method, target, headers, body) of a request that botocore signed."""
    parts = urlsplit(url)
    request = AWSRequest(method, url, {"Host": parts.netloc}, body)
    signer(Credentials(keys.id, keys.secret, keys.token), service, "us-east-1").add_auth(request)
    headers = {name.lower(): value for name, value in request.headers.items()}
    return method, f"{parts.path}?{parts.query}".rstrip("?"), headers, body


@pytest.mark.parametrize(
    ("signer", "service", "method", "url", "body"),
    [
        (S3SigV4Auth, "s3", "GET", BUCKET, b""),
        (S3SigV4Auth, "s3", "PUT", BUCKET, b"content"),
        (SigV4Auth, "monitoring", "POST", MONITORING, b"Action=PutMetricData"),
    ],
)
def test_what_botocore_signs_with_the_role_s_keys_is_taken(signer, service, method, url, body):
    assert check(*signed(signer, service, method, url, body), KEYS).service == service


def test_other_keys_are_refused():
    with pytest.raises(SignatureError, match="signed by ASIAOTHER"):
        check(*signed(SigV4Auth, "ec2", "POST", MONITORING, keys=OTHER), KEYS)


def test_a_wrong_secret_is_refused():
    wrong = Keys(KEYS.id, "guessed", KEYS.token)

    with pytest.raises(SignatureError, match="the signature is not that of"):
        check(*signed(SigV4Auth, "monitoring", "POST", MONITORING, keys=wrong), KEYS)


def test_another_body_path_or_method_than_was_signed_is_refused():
    method, target, headers, body = signed(S3SigV4Auth, "s3", "PUT", BUCKET, b"content")

    for changed in (("GET", target, headers, body), (method, "/image/other", headers, body)):
        with pytest.raises(SignatureError, match="the signature is not that of"):
            check(*changed, KEYS)
    with pytest.raises(SignatureError, match="another body"):
        check(method, target, headers, b"changed", KEYS)


def test_an_unsigned_request_is_refused():
    with pytest.raises(SignatureError, match="not signed"):
        check("GET", "/", {"host": "records.s3.us-east-1.amazonaws.com"}, b"", KEYS)
