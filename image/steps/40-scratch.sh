#!/usr/bin/env bash
# Instance-store disks as one file system at /scratch.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

install_group scratch
lay etc/systemd/system/scratch.service usr/libexec/gpu-fleet/scratch
# the array is found by its own label: a remembered one would be missing after a stop and a start
rm -f /etc/mdadm/mdadm.conf
systemctl enable scratch.service
# disks over the network are not for this
systemctl mask --quiet nvmf-autoconnect.service nvmefc-boot-connections.service
