#!/usr/bin/env bash
# Remove everything of the builder: keys, identity, history, logs, cloud-init state.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

rm -f /etc/ssh/ssh_host_*
# a key that signed modules here could sign any module for every instance of this image
rm -f /var/lib/dkms/mok.*
rm -rf /root/.ssh /home/*/.ssh /root/.cache /root/.config /root/.gnupg
find / -xdev \( -name '.*_history' -o -name '.wget-hsts' -o -name '.lesshst' -o -name .pip \) -prune -exec rm -rf {} +
if command -v cloud-init >/dev/null; then
    cloud-init clean --logs --seed
fi
# empty, not absent: systemd then gives each instance its own at first boot
: >/etc/machine-id
rm -f /var/lib/dbus/machine-id /var/lib/systemd/random-seed /var/lib/systemd/credential.secret
# a name by which network storage distinguishes instances
rm -f /etc/nvme/hostid /etc/nvme/hostnqn
# restore the base's own archives
rm -rf "$ARCHIVES" "$ARCHIVES_ONLY"
rm -f /etc/hostname /etc/.pwd.lock /etc/*- /var/lib/dpkg/*-old /var/cache/debconf/*-old
find /var/log -type f -delete
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache /var/lib/dhcp/* /var/tmp/*
if [ "$TARGET" = qemu ] || [ "$TARGET" = oci ]; then
    : >/etc/hostname
else
    apt-get clean
fi
