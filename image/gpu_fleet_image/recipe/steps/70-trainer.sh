#!/usr/bin/env bash
# The trainer in a virtual environment, from wheels that are locked by hash.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

environment=/opt/gpu-fleet/venv modules=/opt/gpu-fleet/lib
install_group python
if [ -n "$BOOTSTRAP" ] && [ "${WHEELS:-index}" = bucket ]; then
    # no access to PyPI: `gpu-fleet image wheels` has uploaded them, and pip, to the stack's bucket
    export FILES=/var/cache/gpu-fleet/files
    /usr/bin/python3 -I /opt/gpu-fleet/bin/run gpu_fleet_image.instance.trainer_wheels "$PAYLOAD/wheels" "$BASE" "$FILES/wheels"
elif [ -n "$BOOTSTRAP" ]; then
    install python3-venv
fi
# a builder on a cloud has an index instead of a folder of them; the hashes check both
source=()
[ ! -d "$FILES/wheels" ] || source=(--no-index --find-links "$FILES/wheels")
installer=$(find "$FILES/wheels" -name 'pip-*.whl' 2>/dev/null | head -n 1 || true)
if [ -n "$installer" ]; then
    python3 -m venv --clear --without-pip "$environment"
    pip=(python3 "$installer/pip" --python "$environment/bin/python")
else
    python3 -m venv --clear "$environment"
    pip=("$environment/bin/pip")
fi
"${pip[@]}" install --quiet --no-deps --require-hashes --no-cache-dir --no-compile \
    --disable-pip-version-check "${source[@]}" --requirement "$PAYLOAD/wheels/$BASE.txt"
"${pip[@]}" check --disable-pip-version-check
site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$modules" >"$site/gpu-fleet.pth"
# on all processors; with a hash that is not checked, so that no instance reads the sources at boot; some wheels contain
# templates that are not Python yet
"$environment/bin/python" -m compileall -q -j 0 --invalidation-mode unchecked-hash "$site" >/dev/null ||
    log event=not-all-compiled folder="$site"
if [ "$TARGET" = oci ]; then
    exit 0
fi
lay etc/systemd/system/trainer@.service
if [ -n "$BOOTSTRAP" ]; then
    rm -rf "$FILES/wheels"
    python3 -m compileall -q "$modules" /opt/gpu-fleet/vendor # users cannot write there
    systemctl daemon-reload
    systemctl restart --no-block gpu-ready.service # which can now also copy on every GPU
fi
