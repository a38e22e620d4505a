# Users' log-in shells see the GPUs that they reserved, where anybody reserved some: gpu-fleet gpu list
if [ -e /run/gpu-fleet/gpus.json ] && [ "$(id -u)" -ne 0 ]; then
    eval "$(/usr/local/bin/gpu-fleet gpu env)"
fi
