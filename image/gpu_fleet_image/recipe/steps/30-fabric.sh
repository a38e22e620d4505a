#!/usr/bin/env bash
# Network interfaces for collectives: EFA on AWS, eRDMA on Alibaba Cloud. After the driver, whose peer memory they use.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

case $TARGET in
    aws) archive=$(outside efa-installer) ;;
    alicloud)
        install_group erdma-build
        archive=$(outside erdma-installer)
        ;;
    *) fail "TARGET = '$TARGET': only aws and alicloud have such interfaces" ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xf "$archive" -C "$work" --strip-components=1
cd "$work"
case $TARGET in
    # --no-verify: the builder has no such interface; the gate counts them on the instance
    aws) ./efa_installer.sh -y --no-verify ;;
    alicloud)
        ./install.sh --batch
        # for NCCL on GPU instances: it also opens connections through the kernel
        echo 'options erdma compat_mode=Y' >/etc/modprobe.d/erdma.conf
        ;;
esac
