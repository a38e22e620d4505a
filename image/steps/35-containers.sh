#!/usr/bin/env bash
# Containers see GPUs through CDI; the specification is written at each boot, from the GPUs that are there.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

repository container-toolkit
install "nvidia-container-toolkit=$(locked container-toolkit version)"
install_group containers
lay etc/systemd/system/nvidia-cdi.service
systemctl enable nvidia-cdi.service
