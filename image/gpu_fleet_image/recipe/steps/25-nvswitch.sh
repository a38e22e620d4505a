#!/usr/bin/env bash
# Fabric manager and NSCQ of the driver's version; they start only on instances with an NVSwitch.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

install_group nvswitch
driver=$(dpkg-query --show --showformat '${Version}' "$(packages_of nvidia-driver | head -n 1)")
manager=$(dpkg-query --show --showformat '${Version}' "$(packages_of nvswitch | head -n 1)")
[ "${manager%%-*}" = "${driver%%-*}" ] || fail "fabric manager $manager and driver $driver must have the same version"
# the subnet manager of a B200's switches, which the fabric manager starts itself; Ubuntu has none
archive nvidia-cuda
install_locked nvlsm
lay etc/systemd/system/nvidia-fabricmanager.service.d
systemctl enable nvidia-fabricmanager.service
