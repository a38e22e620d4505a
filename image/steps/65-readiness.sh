#!/usr/bin/env bash
# The gate: a machine says what it found before anyone trains on it.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

lay etc/systemd/system/gpu-ready.service etc/systemd/system/scratch-disk.service \
    etc/systemd/system/mig.service etc/systemd/system/mig@.service \
    usr/libexec/gpu-fleet/mig usr/libexec/gpu-fleet/check-image
systemctl enable gpu-ready.service scratch-disk.service mig.service
