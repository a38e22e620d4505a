#!/usr/bin/env bash
# The base system: its packages, the account of the services, and everything that must not update itself.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

if [ "$TARGET" = aws ] || [ "$TARGET" = alicloud ]; then
    # a builder that has just booted upgrades itself: apt would wait for dpkg's lock, but not for that of its lists
    systemctl stop apt-daily.timer apt-daily-upgrade.timer
    systemd-run --quiet --wait --property=After="apt-daily.service apt-daily-upgrade.service" true
fi
# no automatic upgrades: a replaced NVIDIA library breaks every running job
command install -d -m 0755 /etc/apt/apt.conf.d /etc/apt/preferences.d
lay etc/apt etc/dpkg
if [ "$TARGET" = aws ] || [ "$TARGET" = alicloud ]; then
    rm -f "$ARCHIVE_DAY"
    archive ubuntu-archive
else
    apt-get update --quiet
fi
install_group base
# without it "localhost" needs a query to the network
lay etc/hosts
if [ "$TARGET" = oci ]; then
    exit 0
fi
if [ "$TARGET" = qemu ]; then
    # before the package with the defaults; the clouds' own base knows its disks
    lay etc/initramfs-tools usr/share/initramfs-tools
fi
install_group machine
install_group firewall
lay etc/cloud etc/systemd/system.conf.d etc/systemd/system/user.slice.d etc/systemd/system/user-.slice.d
systemctl enable systemd-networkd.service
systemctl disable --quiet apt-daily.timer apt-daily-upgrade.timer
# unused services that every boot waits for: checks of LVM snapshots, formats of foreign programs
systemctl mask --quiet e2scrub_reap.service e2scrub_all.timer systemd-binfmt.service uuidd.socket
