#!/usr/bin/env bash
# Users' tools beside the trainer: a compiler for Triton, JupyterLab and uv, whose kernels have the trainer's packages,
# and micromamba.
set -euo pipefail
# shellcheck source=../lib.sh
. "$PAYLOAD/lib.sh"

environment=/opt/gpu-fleet/tools trainer=/opt/gpu-fleet/venv
if [ -n "$BOOTSTRAP" ] && [ "$BASE" != ubuntu-24.04 ]; then
    log event=tools-left-out base="$BASE" reason="wheels/tools.txt is resolved for ubuntu-24.04"
    exit 0
fi
if [ -n "$BOOTSTRAP" ] && [ "${WHEELS:-index}" = bucket ]; then
    log event=tools-left-out reason="no access to PyPI; the stack's bucket has only the trainer's wheels"
    exit 0
fi
install_group compiler
python3 -m venv --clear "$environment"
"$environment/bin/pip" install --quiet --no-deps --require-hashes --no-cache-dir --only-binary :all: \
    --disable-pip-version-check --requirement "$PAYLOAD/wheels/tools.txt"
# on top of the trainer's packages, for whose versions the list was resolved: a notebook imports torch and gpu_fleet
below=$("$trainer/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf 'import site; site.addsitedir("%s")\n' "$below" >"$site/gpu-fleet-trainer.pth"
"$environment/bin/pip" check --disable-pip-version-check
for name in jupyter jupyter-lab uv uvx; do
    [ -x "$environment/bin/$name" ] || fail "$environment/bin/$name: no wheel brought it"
    ln -sfn "$environment/bin/$name" "/usr/local/bin/$name"
done
# a first boot fetches only from the distribution and PyPI
[ -z "$BOOTSTRAP" ] || exit 0
# conda environments in a user's home, from conda-forge unless the user chooses another channel
command install -m 0755 "$(outside micromamba)" /usr/local/bin/micromamba
lay etc/conda
