#!/usr/bin/env bash
# Agent, gate and commands for the system's own Python: no package, no network, only files of the payload.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

home=$ROOT/opt/gpu-fleet laid=$ROOT/opt/gpu-fleet/payload.laid
mkdir -p "$home"
# a second try of the same payload must not remove modules of a running agent
if ! cmp --quiet "$PAYLOAD/payload.sha256" "$laid"; then
    rm -f "$laid"
    for tree in python:lib vendor:vendor examples:examples; do
        rm -rf "${home:?}/${tree#*:}"
        cp -r --no-preserve=ownership "$PAYLOAD/${tree%:*}" "$home/${tree#*:}"
    done
    if [ -z "$BOOTSTRAP" ]; then
        # on all processors; with a hash that is not checked, so that no instance reads the sources at boot
        python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash "$home/lib" "$home/vendor"
    fi
    cp --no-preserve=ownership "$PAYLOAD/payload.sha256" "$laid"
fi
if [ "$TARGET" = oci ]; then
    exit 0
fi
lay opt/gpu-fleet/bin usr/local/bin usr/libexec/gpu-fleet/mig usr/libexec/gpu-fleet/check-image \
    usr/libexec/gpu-fleet/open-door etc/systemd/system/gpu-door.service etc/systemd/system/gpu-door.timer \
    usr/libexec/gpu-fleet/start-run etc/systemd/system/gpu-run@.service \
    usr/libexec/gpu-fleet/reserve-gpus etc/profile.d \
    etc/sysusers.d etc/tmpfiles.d etc/systemd/system/gpu-fleet.slice \
    etc/systemd/system/gpu-reaper.service etc/systemd/system/gpu-ready.service \
    etc/systemd/system/gpu-logs.service \
    etc/systemd/system/gpu-metadata.service etc/systemd/system/nftables.service.d etc/systemd/system/user@.service.d \
    usr/share/gpu-fleet/metadata.nft usr/share/pam-configs \
    etc/systemd/system/gpu-credentials.service etc/systemd/system/gpu-credentials.socket etc/environment.d \
    etc/systemd/system/gpu-idle-command.service usr/libexec/gpu-fleet/idle-command \
    etc/systemd/system/mig.service etc/systemd/system/mig@.service etc/systemd/system/nvidia-dcgm.service.d \
    etc/systemd/system/gpu-accounts.service etc/systemd/system/gpu-accounts.timer etc/sudoers.d etc/sudo.conf
if [ -z "$ROOT" ]; then
    systemd-sysusers
fi
if [ -n "$BOOTSTRAP" ] && [ -z "$ROOT" ]; then
    # no automatic upgrades: a replaced NVIDIA library breaks every running job
    lay etc/apt etc/systemd/system.conf.d etc/systemd/system/user.slice.d etc/systemd/system/user-.slice.d
    systemctl disable --quiet --now apt-daily.timer apt-daily-upgrade.timer || log event=no-apt-timers
    systemd-tmpfiles --create gpu-fleet.conf
    systemctl daemon-reexec # also reads system.conf.d, unlike a reload
    # a base may have started it, on a port for everybody
    systemctl try-restart --no-block nvidia-dcgm.service || log event=no-dcgm
fi
if [ "$(queue_role)" != controller ]; then
    # the controller is in no pool: it has no GPUs to check, and is never terminated as idle
    serve gpu-logs.service mig.service gpu-ready.service gpu-reaper.service gpu-door.timer
fi
if [ -z "$ROOT" ]; then
    # users' sessions get their environment
    pam-auth-update --package
fi
if [ -n "$BOOTSTRAP" ] && [ -z "$ROOT" ] && ! command -v nft >/dev/null; then
    # after the agent, which needs no download
    (install_group firewall) || log event=no-nft reason="users cannot log in: see gpu-metadata"
fi
serve gpu-logs.service gpu-metadata.service gpu-credentials.socket
serve gpu-accounts.service gpu-accounts.timer
