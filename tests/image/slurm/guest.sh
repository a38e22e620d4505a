#!/usr/bin/env bash
# One instance of the stack, as far as its queue goes: a copy of this computer's files, processes and name of its own, and
# the network namespace it was started in. It does what its user data says, without systemd: `systemctl` only writes down
# what is to be started, and init.py starts that.
#   guest.sh FOLDER NAME HOMES [THIS_COMPUTER_S_FOLDER...]
set -euo pipefail
folder=$1 name=$2 homes=$3
shift 3
root=$folder/root
hostname "$name"
mkdir -p "$folder/upper" "$folder/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"
for own in run tmp dev; do
    mount -t tmpfs tmpfs "$root/$own"
done
chmod 1777 "$root/tmp"
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/zero" c 1 5
mknod -m 666 "$root/dev/full" c 1 7
mknod -m 666 "$root/dev/random" c 1 8
mknod -m 666 "$root/dev/urandom" c 1 9
mkdir -m 1777 "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --bind "$homes" "$root/home"
# what the folders above would hide
for needed in "$@"; do
    own=$(mktemp -d -p "$folder")
    mkdir -p "$own/upper" "$own/work" "$root$needed"
    mount -t overlay overlay -o "lowerdir=$needed,upperdir=$own/upper,workdir=$own/work" "$root$needed"
done
# its own name, as the cloud's resolver has it; any other name is refused at once
address=${name#ip-}
printf '%s %s\n' "${address//-/.}" "$name" >>"$root/etc/hosts"
rm -f "$root/etc/resolv.conf"
echo "nameserver 127.0.0.1" >"$root/etc/resolv.conf"
cp "$(dirname "$0")/init.py" "$root/run/init.py"
mkdir -p "$root/run/guest" "$root/run/lock"
cp -r "$folder/given/." "$root/"
# not chroot: in one nobody makes a namespace of users, and so no container
mkdir "$root/run/computer"
cd "$root"
pivot_root . run/computer
cd /
umount --lazy /run/computer
exec /usr/bin/python3 -I /run/init.py
