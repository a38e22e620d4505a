#!/usr/bin/env bash
# Shared homes and scratch, and buckets as folders: units that wait for the name that cloud-init writes.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

# laid and enabled before anything is fetched: where no way leads to the archive, the base may have all of it
lay etc/systemd/system/home-file-system.service etc/systemd/system/home-tunnel.service \
    etc/systemd/system/bucket@.service etc/systemd/system/scratch-file-system.service \
    usr/libexec/gpu-fleet/mount-home usr/libexec/gpu-fleet/mount-scratch usr/libexec/gpu-fleet/mount-bucket \
    usr/share/gpu-fleet/oss-profile
systemctl enable home-file-system.service scratch-file-system.service
# version 4 of NFS needs no port mapper, and nobody else shall find one
systemctl mask --quiet rpcbind.service rpcbind.socket
install_group mounts
if [ -n "$BOOTSTRAP" ]; then
    systemctl daemon-reload
    systemctl start --no-block scratch-file-system.service
    systemctl start home-file-system.service
fi
