#!/usr/bin/env bash
# Kernel and NVIDIA driver: open modules, precompiled on Ubuntu, built now by DKMS on Debian, never at boot.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

version=$(version_of nvidia-driver)

# every NVIDIA package has one version: the archive may offer newer libraries than modules
printf 'Package: *nvidia* libcuda1\nPin: version %s*\nPin-Priority: 1001\n' "${version%%-*}" \
    >/etc/apt/preferences.d/50-gpu-fleet-nvidia
lay etc/modprobe.d

if [ "$TARGET" = qemu ]; then
    # the kernel is locked with the driver: a newer one of the same series may not compile its modules
    install_locked kernel
    lay etc/dkms
fi
install_locked nvidia-driver
# these may bring a newer kernel, which the next boot uses; its driver is checked below
if [ "$TARGET" = aws ]; then
    install_group modules-aws
elif [ "$TARGET" = alicloud ]; then
    install_group modules-alicloud
fi
mapfile -t modules < <(packages_of "modules-$TARGET")
[ ${#modules[@]} -eq 0 ] || apt-mark hold "${modules[@]}" >/dev/null
if [ "$TARGET" = qemu ]; then
    # Ubuntu's package loads the driver when GPUs are found, Debian's on every boot, with or without a GPU
    lay etc/udev
    ln -sfn /dev/null /etc/modules-load.d/nvidia.conf
fi

kernel=$(find /lib/modules -mindepth 1 -maxdepth 1 -printf '%f\n' | sort -V | tail -n 1)
# Debian names it after the branch and loads it by an alias
module=$(find "/lib/modules/$kernel" \( -name 'nvidia.ko*' -o -name 'nvidia-current-open.ko*' \) -print -quit)
[ -n "$module" ] || fail "no nvidia module for kernel $kernel"
built=$(modinfo --field version "$module")
[ "$built" = "${version%%-*}" ] || fail "$module is $built, locked is $version"
mapfile -t odd < <(
    dpkg-query --show --showformat '${Package} ${source:Package} ${Version} ${db:Status-Status}\n' |
        awk -v version="$version" '$4 == "installed" && $3 != version &&
            $2 ~ /^nvidia-(graphics-drivers|open-gpu-kernel-modules|fabric-manager)/ { print $1, $3 }'
)
[ ${#odd[@]} -eq 0 ] || fail "NVIDIA packages of another version than $version: ${odd[*]}"

# a kernel that arrives later must not compile modules on an instance that is booting
systemctl mask --quiet dkms.service
