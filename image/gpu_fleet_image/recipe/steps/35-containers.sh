#!/usr/bin/env bash
# Containers see GPUs through CDI; the specification is written at each boot, from the present GPUs. Access to docker's
# socket makes root: admins have it, by their group. All other users have podman, as their own account.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

archive nvidia-container-toolkit
install_locked container-toolkit
# before the packages, whose scripts start their services
lay etc/docker etc/systemd/system/docker.socket.d
install_group containers
if [ "$TARGET" = aws ]; then
    install_group registries-aws
fi
lay etc/systemd/system/nvidia-cdi.service
systemctl enable nvidia-cdi.service
# it starts at the first call; most training instances never use it
systemctl disable --quiet docker.service
systemctl enable --quiet docker.socket
