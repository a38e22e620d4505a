# For users' shells, also those of Session Manager, which does not use PAM. Root has the instance's own role.
if [ "$(id -u)" -ne 0 ] && [ -r /etc/environment.d/60-gpu-fleet.conf ]; then
    set -a
    . /etc/environment.d/60-gpu-fleet.conf
    set +a
fi
