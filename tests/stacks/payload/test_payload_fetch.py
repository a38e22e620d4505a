"""The program of the user data: its signatures, its refusals, its readers."""

import ast
import configparser
import io
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.recipe import bootstrap
from gpu_fleet_stacks.payload import fetch, user_data

KEYS = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789/-_.~ +=&%$@:,é", min_size=1, max_size=60)
REGIONS = st.sampled_from(["us-east-1", "eu-central-1", "us-gov-west-1", "cn-shenzhen", "ap-southeast-7"])
MOMENTS = st.integers(1_577_836_800, 4_070_908_800).map(lambda second: datetime.fromtimestamp(second, UTC))
SECRETS = st.text("ABCDEFabcdef0123456789/+", min_size=16, max_size=40)
ROLE_KEYS = st.tuples(SECRETS, SECRETS, st.just("") | SECRETS)


def location(cloud="aws", region="us-east-1", key="image/payload/x.tar.gz"):
    return {"cloud": cloud, "region": region, "bucket": "records", "key": key}


@given(KEYS, REGIONS, st.sampled_from(["aws", "alicloud"]), ROLE_KEYS, MOMENTS)
def test_a_request_is_signed_as_botocore_signs_it(key, region, cloud, keys, now):
    key_id, secret, token = keys
    url = fetch.address(location(cloud, region, key))
    request = AWSRequest("GET", url)

    headers = fetch.signed(url, region, keys, now)

    request.context["timestamp"] = headers["x-amz-date"]
    for name, value in headers.items():
        if name not in ("Authorization", "host"):
            request.headers[name] = value
    signer = S3SigV4Auth(Credentials(key_id, secret, token or None), "s3", region)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert headers["Authorization"].endswith(f"Signature={signer.signature(text, request)}")
    assert f"Credential={key_id}/{signer.credential_scope(request)}," in headers["Authorization"]


def test_the_bucket_is_reached_by_its_own_name_inside_the_network():
    for cloud, region, host in (
        ("aws", "us-east-1", "records.s3.us-east-1.amazonaws.com"),
        ("aws", "us-gov-west-1", "records.s3.us-gov-west-1.amazonaws.com"),
        ("alicloud", "cn-shenzhen", "records.s3.oss-cn-shenzhen-internal.aliyuncs.com"),
    ):
        assert fetch.address(location(cloud, region)) == f"https://{host}/image/payload/x.tar.gz"


def test_an_older_python_reads_it_far_enough_to_be_named(monkeypatch, capsys):
    ast.parse(Path(fetch.__file__).read_text(), feature_version=(3, 6))
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))

    assert fetch.main() == 2
    assert "3.11 or newer is needed; boot another image" in capsys.readouterr().out


def archive(file, name, kind=tarfile.REGTYPE):
    with tarfile.open(file, "w") as made:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        made.addfile(member, io.BytesIO())
    return str(file)


def test_nothing_but_plain_files_below_the_folder_is_unpacked(tmp_path):
    for name, kind in (
        ("/etc/cron.d/x", tarfile.REGTYPE),
        ("steps/../../x", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("link", tarfile.LNKTYPE),
        ("device", tarfile.CHRTYPE),
    ):
        with pytest.raises(fetch.BootError, match="no plain file inside of it"):
            fetch.unpack(archive(tmp_path / "payload.tar", name, kind), str(tmp_path / "folder"))
    assert not (tmp_path / "x").exists()


def test_the_unit_runs_at_every_boot_until_the_recipe_has_left_its_mark_and_tries_what_can_heal_again():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # systemd's keys have capitals
    unit.read_string(user_data.UNIT_TEXT)
    mark = bootstrap.RecipePlace(Path("/payload"), Path("/"), "aws").marker
    final = {int(status) for status in unit["Service"]["RestartPreventExitStatus"].split()}

    assert unit["Unit"]["ConditionPathExists"] == f"!{mark}"
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert unit["Service"]["Restart"] == "on-failure"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert final == {fetch.FinalError.status, bootstrap.INCOMPLETE}
    assert fetch.BootError.status not in final
