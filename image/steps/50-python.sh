#!/usr/bin/env bash
# Trainer, agent and gate in one virtual environment, from locked wheels and no index.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

environment=/opt/gpu-fleet/venv modules=/opt/gpu-fleet/lib
install_group python
python3 -m venv --clear "$environment"
"$environment/bin/pip" install --quiet --no-index --no-deps --require-hashes --no-cache-dir \
    --disable-pip-version-check --find-links "$FILES/wheels" --requirement "$PAYLOAD/wheels/$BASE.txt"
"$environment/bin/pip" check --disable-pip-version-check

rm -rf "$modules"
mkdir -p "$modules"
cp -r --no-preserve=ownership "$PAYLOAD/python/." "$modules/"
site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$modules" >"$site/gpu-fleet.pth"
"$environment/bin/python" -m compileall -q "$modules"
if [ "$TARGET" = oci ]; then
    exit 0
fi
lay etc/systemd/system/trainer@.service etc/systemd/system/gpu-reaper.service
systemctl enable gpu-reaper.service
