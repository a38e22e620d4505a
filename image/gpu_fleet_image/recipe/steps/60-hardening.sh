#!/usr/bin/env bash
# Keys only over SSH, a network stack that trusts nobody, a record of what root changes.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

lay etc/ssh etc/sysctl.d etc/audit
# sshd's own check, with a key that lives as long as the check: the image carries none
keys=$(mktemp -d) # in a folder of its own: nobody else foresees or replaces what is in it
ssh-keygen -q -t ed25519 -N '' -f "$keys/key"
mkdir -p /run/sshd
sshd -t -h "$keys/key" || fail "sshd refuses its configuration"
rm -r "$keys"
passwd --lock --quiet root
if [ -n "$BOOTSTRAP" ]; then
    sysctl --quiet --load=/etc/sysctl.d/60-gpu-fleet.conf
    systemctl try-reload-or-restart ssh.service
fi
# last, since a network without a way out has no package of it
install_group hardening
systemctl enable auditd.service
[ -z "$BOOTSTRAP" ] || systemctl restart auditd.service
