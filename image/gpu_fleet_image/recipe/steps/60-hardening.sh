#!/usr/bin/env bash
# Only keys over SSH, a network stack that trusts no host, a record of root's changes.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

lay etc/ssh etc/sysctl.d etc/audit
# sshd's own check, with a key that exists only for the check: the image has none
keys=$(mktemp -d) # in a folder of its own: no other user can predict or replace its content
ssh-keygen -q -t ed25519 -N '' -f "$keys/key"
mkdir -p /run/sshd
sshd -t -h "$keys/key" || fail "sshd refuses its configuration"
rm -r "$keys"
passwd --lock --quiet root
if [ -n "$BOOTSTRAP" ]; then
    sysctl --quiet --load=/etc/sysctl.d/60-gpu-fleet.conf
    systemctl try-reload-or-restart ssh.service
fi
# last, since without internet access its package may be missing
install_group hardening
systemctl enable auditd.service
[ -z "$BOOTSTRAP" ] || systemctl restart auditd.service
