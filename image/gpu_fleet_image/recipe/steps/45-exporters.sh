#!/usr/bin/env bash
# Metrics of instance and GPUs for scrapers: node exporter everywhere, DCGM's if the base has one.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

install_group exporters
systemctl enable prometheus-node-exporter.service
if [ "$TARGET" = qemu ]; then
    log event=skipped what=dcgm-exporter reason="Debian 12 ships none and a virtual machine has no GPU"
    exit 0
fi
archive nvidia-cuda
install_locked dcgm
install_locked dcgm-exporter
systemctl enable nvidia-dcgm.service nvidia-dcgm-exporter.service
