#!/usr/bin/env bash
# Run a command inside a root file system: enter.sh ROOT PAYLOAD FILES APT_CACHE COMMAND...
# It is called through `unshare --mount --pid --fork --kill-child`: when this process ends, however it ends, the kernel
# removes every mount and ends every process, so there is nothing to undo by hand.
set -euo pipefail

root=$1 payload=$2 files=$3 apt_cache=$4
shift 4

mount --make-rprivate /
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"

bind() {
    mkdir -p "$2"
    mount --bind "$1" "$2"
}
bind "$payload" "$root/run/bake/payload"
bind "$files" "$root/run/bake/files"
bind "$apt_cache" "$root/var/cache/apt/archives"

# names resolve as on this computer; on the later instance the same link leads to its own resolver
ln -sfn ../run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"
mkdir -p "$root/run/systemd/resolve"
cp --dereference /etc/resolv.conf "$root/run/systemd/resolve/stub-resolv.conf"

# packages start no service while they are installed
refuse=$root/usr/sbin/policy-rc.d
printf '#!/bin/sh\nexit 101\n' >"$refuse"
chmod +x "$refuse"
trap 'rm -f "$refuse"' EXIT

env --ignore-environment \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
    TARGET="${TARGET:-}" SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-}" FILES=/run/bake/files \
    chroot "$root" "$@"
