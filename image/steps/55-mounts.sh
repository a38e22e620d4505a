#!/usr/bin/env bash
# Shared homes, and buckets as folders: units that wait for the name that cloud-init writes.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

install_group mounts
lay etc/systemd/system/home-file-system.service etc/systemd/system/home-tunnel.service \
    etc/systemd/system/bucket@.service \
    usr/libexec/gpu-fleet/mount-home usr/libexec/gpu-fleet/mount-bucket \
    usr/libexec/gpu-fleet/oss-credentials usr/share/gpu-fleet/oss-profile
systemctl enable home-file-system.service
# version 4 of NFS needs no port mapper, and nobody else shall find one
systemctl mask --quiet rpcbind.service rpcbind.socket
if [ -n "$BOOTSTRAP" ]; then
    systemctl daemon-reload
    systemctl start home-file-system.service
fi
