#!/usr/bin/env bash
# Containers see GPUs through CDI; the specification is written at each boot, from the GPUs that are there. Whoever may
# speak with docker is root: admins, by their group. Everybody else has podman, as their own account.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

archive nvidia-container-toolkit
install_locked container-toolkit
# before the packages, whose scripts start what they bring
lay etc/docker etc/systemd/system/docker.socket.d
install_group containers
if [ "$TARGET" = aws ]; then
    install_group registries-aws
fi
lay etc/systemd/system/nvidia-cdi.service
systemctl enable nvidia-cdi.service
# it starts at the first call; on most training instances there is none
systemctl disable --quiet docker.service
systemctl enable --quiet docker.socket
