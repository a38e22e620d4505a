#!/usr/bin/env bash
# Containers see GPUs through CDI; the specification is written at each boot, from the GPUs that are there.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

archive nvidia-container-toolkit
install_locked container-toolkit
install_group containers
lay etc/systemd/system/nvidia-cdi.service
systemctl enable nvidia-cdi.service
