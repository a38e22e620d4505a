#!/usr/bin/env bash
# Network cards for collectives: EFA on AWS, eRDMA on Alibaba Cloud. After the driver, whose peer memory they use.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

case $TARGET in
    aws) archive=$(outside efa-installer) ;;
    alicloud)
        install_group erdma-build
        archive=$(outside erdma-installer)
        ;;
    *) fail "TARGET = '$TARGET': only aws and alicloud have such cards" ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xf "$archive" -C "$work" --strip-components=1
cd "$work"
case $TARGET in
    # --no-verify: the builder has no such card; the readiness gate counts them on the instance
    aws) ./efa_installer.sh -y --no-verify ;;
    alicloud)
        ./install.sh --batch
        # what NCCL asks for, on GPU instances: connections by the kernel's own way too
        echo 'options erdma compat_mode=Y' >/etc/modprobe.d/erdma.conf
        ;;
esac
