#!/usr/bin/env bash
# Shared homes and scratch, and buckets as folders: units that wait for the names that cloud-init writes.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

# installed and enabled before anything is fetched: without access to the archive, the base may still have all of it
lay etc/systemd/system/home-file-system.service etc/systemd/system/home-tunnel.service \
    etc/systemd/system/bucket@.service etc/systemd/system/scratch-file-system.service \
    usr/libexec/gpu-fleet/mount-home usr/libexec/gpu-fleet/mount-scratch usr/libexec/gpu-fleet/mount-bucket \
    usr/share/gpu-fleet/oss-profile
systemctl enable home-file-system.service scratch-file-system.service
# NFS 4 needs no port mapper, and no other host shall find one
systemctl mask --quiet rpcbind.service rpcbind.socket
install_group mounts
if [ -n "$BOOTSTRAP" ]; then
    systemctl daemon-reload
    systemctl start --no-block scratch-file-system.service
    systemctl start home-file-system.service
fi
