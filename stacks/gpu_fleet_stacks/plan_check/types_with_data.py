"""Types that hold data, its key or its network, and the settings behind them. Data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Holding:
    """A type whose replacement or deletion loses something.

    Attributes:
        back_up: what to do before ``--replace``.
        settings: property that forces a replacement -> the setting behind it.
        deleted_by: the setting whose change removes the resource from the program.
    """

    what: str
    back_up: str
    settings: dict[str, str]
    deleted_by: str


_COPY_BUCKET = "copy its objects to a bucket outside of the stack (aws s3 sync, ossutil sync)"
_KEEP_KEY = "copy everything that it encrypts: buckets, file systems and snapshots are unreadable without it"
_COPY_FILES = "copy its files to a bucket, from an instance that mounts it"
_MOUNTS = "stop all work on instances that mount it: their mounts will hang"
_COPY_LOGS = "export its entries: a new store starts empty"
_EMPTY_NETWORK = "empty every pool in it, and back up the file systems that are mounted there"

_NETWORK = {
    "cidrBlock": "network.cidr or network.slots",
    "vpcId": "network.existing",
    "zoneId": "network.zones",
    "availabilityZone": "network.zones",
    "region": "region",
}
_SUBNETS = "network.zones or network.existing"
_MOUNTED = {"subnetId": _SUBNETS, "vswitchId": _SUBNETS, "region": "region"}
_NAMED = "the name of the stack or account_id"
_OR_OFF = f"logs.instances, {_NAMED}"

HOLDINGS = {
    "aws:s3/bucket:Bucket": Holding(
        "every object and version in it", _COPY_BUCKET, {"bucket": _NAMED, "region": "region"}, _NAMED
    ),
    "aws:kms/key:Key": Holding("whatever it encrypts", _KEEP_KEY, {"region": "region"}, _NAMED),
    "aws:efs/fileSystem:FileSystem": Holding(
        "every home", _COPY_FILES, {"kmsKeyId": "the stack's key", "region": "region"}, "storage.home"
    ),
    "aws:efs/mountTarget:MountTarget": Holding(
        "the homes of running instances", _MOUNTS, _MOUNTED, "storage.home or network.zones"
    ),
    "aws:fsx/lustreFileSystem:LustreFileSystem": Holding(
        "all of the shared scratch",
        _COPY_FILES,
        {
            "storageCapacity": "storage.scratch_gib (it grows, and never shrinks)",
            "subnetIds": _SUBNETS,
            "kmsKeyId": "the stack's key",
            "securityGroupIds": "the network",
            "region": "region",
        },
        "storage.scratch_gib",
    ),
    "aws:cloudwatch/logGroup:LogGroup": Holding(
        "every entry in it", _COPY_LOGS, {"name": _NAMED, "region": "region"}, _OR_OFF
    ),
    "aws:ec2/vpc:Vpc": Holding("the whole network", _EMPTY_NETWORK, _NETWORK, "network.existing"),
    "aws:ec2/subnet:Subnet": Holding("everything in it", _EMPTY_NETWORK, _NETWORK, _SUBNETS),
    "alicloud:oss/bucket:Bucket": Holding(
        "every object and version in it",
        _COPY_BUCKET,
        {"bucket": _NAMED, "redundancyType": "storage.redundancy"},
        _NAMED,
    ),
    "alicloud:kms/key:Key": Holding(
        "whatever it encrypts", _KEEP_KEY, {"dkmsInstanceId": "storage.kms_instance_id"}, _NAMED
    ),
    "alicloud:nas/fileSystem:FileSystem": Holding(
        "every home, or all of the shared scratch",
        _COPY_FILES,
        {
            "zoneId": "network.zones or network.slots",
            "vswitchId": "network.zones or network.slots",
            "kmsKeyId": "storage.kms_instance_id",
        },
        "storage.home or storage.scratch_gib",
    ),
    "alicloud:nas/mountTarget:MountTarget": Holding(
        "the homes or the scratch of running instances",
        _MOUNTS,
        _MOUNTED,
        "storage.home, storage.scratch_gib or network.zones",
    ),
    "alicloud:log/project:Project": Holding(
        "every entry in it", _COPY_LOGS, {"projectName": _NAMED, "name": _NAMED}, _OR_OFF
    ),
    "alicloud:log/store:Store": Holding(
        "every entry in it", _COPY_LOGS, {"projectName": _NAMED, "logstoreName": _NAMED}, _OR_OFF
    ),
    "alicloud:vpc/network:Network": Holding(
        "the whole network", _EMPTY_NETWORK, _NETWORK, "network.existing"
    ),
    "alicloud:vpc/switch:Switch": Holding("everything in it", _EMPTY_NETWORK, _NETWORK, _SUBNETS),
}
# Property -> types whose replacement changes it to a new id, which replaces the resource that names it.
FOLLOWS = {
    "vpcId": ("aws:ec2/vpc:Vpc", "alicloud:vpc/network:Network"),
    "subnetId": ("aws:ec2/subnet:Subnet",),
    "subnetIds": ("aws:ec2/subnet:Subnet",),
    "securityGroupIds": ("aws:ec2/securityGroup:SecurityGroup",),
    "vswitchId": ("alicloud:vpc/switch:Switch",),
    "kmsKeyId": ("aws:kms/key:Key", "alicloud:kms/key:Key"),
    "fileSystemId": ("aws:efs/fileSystem:FileSystem", "alicloud:nas/fileSystem:FileSystem"),
    "projectName": ("alicloud:log/project:Project",),
}
