#!/usr/bin/env bash
# The image's contents, for users and scanners: a CycloneDX bill of materials and a manifest.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

python3 "$PAYLOAD/sbom.py" --target "$TARGET" --base "$BASE" --payload "$PAYLOAD/payload.sha256" \
    --environment /opt/gpu-fleet/venv --folder /usr/share/gpu-fleet
