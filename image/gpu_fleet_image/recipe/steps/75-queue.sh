#!/usr/bin/env bash
# Slurm, on an instance whose stack has a queue: the controller or a node, with the distribution's own packages.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

role=$(queue_role)
# an image is baked for any stack; a stack with a queue boots a base image
if [ -z "$BOOTSTRAP" ] || [ -z "$role" ]; then
    exit 0
fi
# the packages' own units would start before they are configured
systemctl mask --quiet slurmd.service slurmctld.service slurmdbd.service
lay usr/libexec/gpu-fleet/queue-prolog usr/libexec/gpu-fleet/queue-epilog usr/libexec/gpu-fleet/queue-health
case $role in
    controller)
        lay etc/systemd/system/mariadb.service.d/60-gpu-fleet.conf
        install_group queue-controller
        units=(gpu-queue-accounting.service gpu-queue-controller.service gpu-queue-watch.service)
        ;;
    node)
        install_group queue-node
        lay usr/libexec/gpu-fleet/queue-task-prolog
        units=(gpu-queue-node.service)
        ;;
    *) fail "queue.json: role is '$role'; allowed: controller, node" ;;
esac
for unit in "${units[@]}"; do
    lay "etc/systemd/system/$unit"
done
systemctl daemon-reload
serve "${units[@]}"
