#!/usr/bin/env bash
# Trainer, agent and gate in one virtual environment, from wheels that are locked by hash.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

environment=/opt/gpu-fleet/venv modules=/opt/gpu-fleet/lib
install_group python
python3 -m venv --clear "$environment"
# a builder on a cloud has no folder of them, and an index instead; the hashes hold either
source=()
[ ! -d "$FILES/wheels" ] || source=(--no-index --find-links "$FILES/wheels")
"$environment/bin/pip" install --quiet --no-deps --require-hashes --no-cache-dir --no-compile \
    --disable-pip-version-check "${source[@]}" --requirement "$PAYLOAD/wheels/$BASE.txt"
"$environment/bin/pip" check --disable-pip-version-check

rm -rf "$modules"
mkdir -p "$modules"
cp -r --no-preserve=ownership "$PAYLOAD/python/." "$modules/"
site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$modules" >"$site/gpu-fleet.pth"
# on all processors; with a hash that nobody checks, so that no machine reads the sources at boot
compile() {
    "$environment/bin/python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$@"
}
compile "$modules"
# some wheels carry templates that are no Python yet
compile "$site" >/dev/null || log event=not-all-compiled folder="$site"
if [ "$TARGET" = oci ]; then
    exit 0
fi
lay etc/systemd/system/trainer@.service etc/systemd/system/gpu-reaper.service
systemctl enable gpu-reaper.service
