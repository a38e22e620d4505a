#!/usr/bin/env bash
# Keys only over SSH, a network stack that trusts nobody, a record of what root changes.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

install_group hardening
lay etc/ssh etc/sysctl.d etc/audit
# sshd's own check, with a key that lives as long as the check: the image carries none
key=$(mktemp -u)
ssh-keygen -q -t ed25519 -N '' -f "$key"
mkdir -p /run/sshd
sshd -t -h "$key" || fail "sshd refuses its configuration"
rm -f "$key" "$key.pub"
systemctl enable auditd.service
passwd --lock --quiet root
