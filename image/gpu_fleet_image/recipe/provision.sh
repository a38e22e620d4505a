#!/usr/bin/env bash
# One recipe for every target: runs the steps of steps/ORDER in order, each in a shell of its own.
#
#   TARGET=aws|alicloud|qemu|oci [FILES=DIR] provision.sh [STEP...]
#
# FILES holds files that were fetched and checked before: wheels/ and other downloads. Without STEP, all steps of the
# target run. Every step can run again over its own result. At the first boot of an image that gpu-fleet did not bake,
# bootstrap.py calls this with BOOTSTRAP=1 for one step after another. With ROOT=DIR a step works in a folder and needs
# no root.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PAYLOAD=$here
# shellcheck source=lib.sh
. "$here/lib.sh"

main() {
    case ${TARGET:-} in
        aws | alicloud | qemu | oci) ;;
        *) fail "TARGET = '${TARGET:-}': must be aws, alicloud, qemu or oci" ;;
    esac
    if [ -z "$ROOT" ]; then
        [ "$(id -u)" -eq 0 ] || fail "not root (user id $(id -u)): provisioning changes the whole instance"
        # the agent must run on any image that was booted
        [ "$BOOTSTRAP $*" = "1 15-agent" ] || [ -f "$here/versions/$BASE.tsv" ] ||
            fail "base $BASE: no versions/$BASE.tsv; the bases are $(bases)"
    fi
    export TARGET FILES=${FILES:-/var/cache/gpu-fleet/files}

    local chosen=("$@")
    [ ${#chosen[@]} -gt 0 ] || mapfile -t chosen < <(steps_of "$TARGET")
    local step
    for step in "${chosen[@]}"; do
        [ -f "$here/steps/$step.sh" ] || fail "step '$step': steps/$step.sh is missing; steps/ORDER names $(all_steps)"
    done
    for step in "${chosen[@]}"; do
        run_step "$step"
    done
    log event=provisioned target="$TARGET" base="$BASE" steps="${#chosen[@]}"
}

bases() {
    find "$here/versions" -name '*.tsv' -printf '%f\n' | sed 's/\.tsv$//' | sort | paste -sd' '
}

all_steps() {
    awk '!/^#/ && NF { print $1 }' "$here/steps/ORDER" | paste -sd' '
}

steps_of() {
    awk -v target="$1" '!/^#/ { for (i = 2; i <= NF; i++) if ($i == target) print $1 }' "$here/steps/ORDER"
}

run_step() {
    local started=$SECONDS
    log event=step-started step="$1"
    if ! bash "$here/steps/$1.sh"; then
        log event=step-failed step="$1" seconds=$((SECONDS - started))
        exit 1
    fi
    log event=step-done step="$1" seconds=$((SECONDS - started))
}

main "$@"
