#!/usr/bin/env bash
# Instance-store disks as one file system at /scratch.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

# installed and enabled before anything is fetched: without access to the archive, the base may still have all of it
lay etc/systemd/system/scratch.service etc/systemd/system/scratch-disk.service usr/libexec/gpu-fleet/scratch
systemctl enable scratch.service scratch-disk.service
# disks over the network are not used here
systemctl mask --quiet nvmf-autoconnect.service nvmefc-boot-connections.service
install_group scratch
# the array is found by its own label: a remembered one would be missing after a stop and a start
rm -f /etc/mdadm/mdadm.conf
if [ -n "$BOOTSTRAP" ]; then
    systemctl daemon-reload
    systemctl start scratch.service
    systemctl start scratch-disk.service
fi
