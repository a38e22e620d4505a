# Show a user's log-in shell only the GPUs that they reserved, if there are reservations: gpu-fleet gpu list
if [ -e /run/gpu-fleet/gpus.json ] && [ "$(id -u)" -ne 0 ]; then
    eval "$(/usr/local/bin/gpu-fleet gpu env)"
fi
