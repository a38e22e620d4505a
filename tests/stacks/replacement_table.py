"""Write ``replacement.toml``: the properties of a type that force a new resource, from the providers' code.

    python -m tests.stacks.replacement_table --alicloud CHECKOUT --aws CHECKOUT

A checkout is a git directory or work tree of terraform-provider-alicloud or terraform-provider-aws, at the
version that the installed SDK bridges. Types of a cloud without a checkout keep their rows.

Rows of AWS also have the properties that AWS calls unchangeable: ``createOnlyProperties`` of its resource
types, as the installed cfn-lint carries them. Without any checkout the script renews these alone.
"""

import argparse
import datetime
import re
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER
from pulumi._types import input_type_types  # the SDK's own reflection

from tests.ran import ran
from tests.stacks.rehearsal.provider_schema import arguments_class

TABLE = Path(__file__).with_name("replacement.toml")
# Type -> the file that declares its schema.
FILES = {
    "alicloud:oss/bucket:Bucket": "alicloud/resource_alicloud_oss_bucket.go",
    "alicloud:kms/key:Key": "alicloud/resource_alicloud_kms_key.go",
    "alicloud:nas/fileSystem:FileSystem": "alicloud/resource_alicloud_nas_file_system.go",
    "alicloud:nas/mountTarget:MountTarget": "alicloud/resource_alicloud_nas_mount_target.go",
    "alicloud:log/project:Project": "alicloud/resource_alicloud_log_project.go",
    "alicloud:log/store:Store": "alicloud/resource_alicloud_log_store.go",
    "alicloud:vpc/network:Network": "alicloud/resource_alicloud_vpc.go",
    "alicloud:vpc/switch:Switch": "alicloud/resource_alicloud_vswitch.go",
    "aws:s3/bucket:Bucket": "internal/service/s3/bucket.go",
    "aws:kms/key:Key": "internal/service/kms/key.go",
    "aws:efs/fileSystem:FileSystem": "internal/service/efs/file_system.go",
    "aws:efs/mountTarget:MountTarget": "internal/service/efs/mount_target.go",
    "aws:fsx/lustreFileSystem:LustreFileSystem": "internal/service/fsx/lustre_file_system.go",
    "aws:cloudwatch/logGroup:LogGroup": "internal/service/logs/group.go",
    "aws:ec2/vpc:Vpc": "internal/service/ec2/vpc_.go",
    "aws:ec2/subnet:Subnet": "internal/service/ec2/vpc_subnet.go",
    "aws:ec2/securityGroup:SecurityGroup": "internal/service/ec2/vpc_security_group.go",
}
# Type -> what AWS calls it, and its properties that the provider calls otherwise.
PUBLISHED = {
    "aws:s3/bucket:Bucket": ("AWS::S3::Bucket", {"BucketName": "bucket", "BucketNamePrefix": "bucketPrefix"}),
    "aws:kms/key:Key": ("AWS::KMS::Key", {}),
    "aws:efs/fileSystem:FileSystem": ("AWS::EFS::FileSystem", {}),
    "aws:efs/mountTarget:MountTarget": ("AWS::EFS::MountTarget", {}),
    "aws:fsx/lustreFileSystem:LustreFileSystem": ("AWS::FSx::FileSystem", {}),
    "aws:cloudwatch/logGroup:LogGroup": ("AWS::Logs::LogGroup", {"LogGroupName": "name"}),
    "aws:ec2/vpc:Vpc": ("AWS::EC2::VPC", {}),
    "aws:ec2/subnet:Subnet": ("AWS::EC2::Subnet", {}),
    "aws:ec2/securityGroup:SecurityGroup": (
        "AWS::EC2::SecurityGroup",
        {"GroupName": "name", "GroupDescription": "description"},
    ),
}
CONSTANTS = "names/attr_consts_gen.go"
# In all of AWS since provider 6: where a resource is. Added by the provider, in no schema's text.
OF_EVERY_TYPE = {"aws": ("region",)}
PROPERTY = re.compile(r'^(?P<indent>\t+)(?:"(?P<text>\w+)"|names\.(?P<constant>\w+)): +\{$')


def forced(source: str, constants: Mapping[str, str]) -> list[str]:
    """Return the top-level properties of a schema that force a new resource, in the SDK's names.

    Args:
        source: Go, as gofmt leaves it.
        constants: ``names.AttrX`` -> its text.
    """
    found: list[str] = []
    current, indent = "", ""
    for line in source.splitlines():
        opened = PROPERTY.match(line)
        if opened and (not indent or opened["indent"] == indent):
            indent = opened["indent"]
            current = opened["text"] or constants[opened["constant"]]
        elif line.startswith("}"):
            if indent:
                break  # the function that holds the schema ends here
        elif re.fullmatch(rf"{indent}\tForceNew: +true,", line) and current:
            found.append(re.sub(r"_(\w)", lambda letter: letter[1].upper(), current))
    return sorted(found)


def published(token: str) -> list[str]:
    """Return a type's properties that AWS publishes as unchangeable and the SDK has, in its names."""
    name, renamed = PUBLISHED[token]
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", name).schema
    paths = [path.removeprefix("/properties/") for path in schema.get("createOnlyProperties", ())]
    known = {renamed.get(path, path[0].lower() + path[1:]) for path in paths if "/" not in path}
    return sorted(known & input_names(token))


def input_names(token: str) -> frozenset[str]:
    """Return the inputs of a type in the installed SDK, in the engine's names."""
    arguments = arguments_class(token)
    assert arguments is not None, token
    return frozenset(input_type_types(arguments))


def _reader(checkout: Path) -> tuple[Callable[[str], str], str]:
    def git(*words: str) -> str:
        asked = ["git", "-C", str(checkout), *words]
        return ran(asked, check=True).stdout

    return (lambda path: git("show", f"HEAD:{path}")), git("rev-parse", "HEAD").strip()


def rows(cloud: str, checkout: Path) -> dict[str, Any]:
    """Return type -> its row, of one cloud."""
    read, commit = _reader(checkout)
    constants: dict[str, str] = {}
    if cloud == "aws":
        constants = dict(re.findall(r'(Attr\w+) += "(\w+)"', read(CONSTANTS)))
    return {
        token: {
            "source": path,
            "commit": commit,
            "read": datetime.datetime.now(datetime.UTC).date(),
            "forces": sorted({*forced(read(path), constants), *OF_EVERY_TYPE.get(cloud, ())}),
        }
        for token, path in FILES.items()
        if token.startswith(f"{cloud}:")
    }


def main() -> None:
    """Rewrite the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alicloud", type=Path)
    parser.add_argument("--aws", type=Path)
    given = parser.parse_args()
    table = tomllib.loads(TABLE.read_text()) if TABLE.exists() else {}
    for cloud in ("alicloud", "aws"):
        checkout = getattr(given, cloud)
        if checkout is not None:
            table |= rows(cloud, checkout)
    for token in PUBLISHED:
        row = {"published_by": f"cfn-lint {version('cfn-lint')}", "published": published(token)}
        table[token] = table.get(token, {}) | row
    TABLE.write_text(tomli_w.dumps(dict(sorted(table.items()))))


if __name__ == "__main__":
    main()
