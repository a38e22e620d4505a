#!/usr/bin/env bash
# Network cards for collectives: EFA on AWS, eRDMA on Alibaba Cloud. After the driver, whose peer memory they use.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

case $TARGET in
    aws) archive=$(fetched efa-installer) ;;
    alicloud) archive=$(fetched erdma-installer) ;;
    *) fail "TARGET = '$TARGET': only aws and alicloud have such cards" ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xf "$archive" -C "$work" --strip-components=1
cd "$work"
case $TARGET in
    # --no-verify: the builder has no such card; the readiness gate counts them on the instance
    aws) ./efa_installer.sh -y --no-verify ;;
    alicloud) ./install.sh --batch ;;
esac
