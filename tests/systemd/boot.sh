#!/bin/sh
# Boots systemd as process 1 of new namespaces, over a throw-away copy of this machine's root: boot.sh FOLDER PYTHON SITE SRC UNITS
# FOLDER is the machine's /opt/test: it has check.py, and gets its output. Only units of UNITS and of FOLDER/units exist there.
set -e
folder=$1 python=$2 site=$3 src=$4 units=$5
if [ -z "$INSIDE" ]; then
    mount --make-rprivate /
    mkdir -p "$folder/cgroup" && mount -t cgroup2 cgroup "$folder/cgroup"
    group=$folder/cgroup/hangup-test-$$
    mkdir "$group" && echo $$ >"$group/cgroup.procs"
    INSIDE=1 timeout -s KILL 150 unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup sh "$0" "$@" || true
    echo $$ >"$folder/cgroup/cgroup.procs"
    for _ in 1 2 3 4 5 6 7 8 9 10; do  # the last processes may take a moment to go
        [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.5
    done
    exit
fi
root=$folder/root
mkdir -p "$root" "$folder/changes" && mount -t tmpfs tmpfs "$folder/changes" && mkdir "$folder/changes/upper" "$folder/changes/work"
mount -t overlay -o "lowerdir=/,upperdir=$folder/changes/upper,workdir=$folder/changes/work" overlay "$root"
mkdir -p "$root/opt/test" "$root/opt/python" "$root/opt/site" "$root/opt/src" "$root/opt/units" "$root/opt/hangup/bin" "$root/old"
mount --bind "$folder" "$root/opt/test"
mount --bind "$python" "$root/opt/python"
mount --bind "$site" "$root/opt/site"
mount --bind "$src" "$root/opt/src"
mount --bind "$units" "$root/opt/units"
cat >"$root/opt/hangup/bin/hangup" <<'END'
#!/bin/sh
LD_LIBRARY_PATH=/opt/python/lib PYTHONPATH=/opt/src:/opt/site exec /opt/python/bin/python3 -P -m hangup "$@"
END
chmod 755 "$root/opt/hangup/bin/hangup"
rm -f "$root/usr/bin/kill" "$root/bin/kill"  # a small Debian has none
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys" && mount -t cgroup2 cgroup "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
for each in run tmp; do mount -t tmpfs tmpfs "$root/$each"; done
ip link set lo up
cd "$root" && pivot_root . old && umount -l /old
exec env container=test SYSTEMD_UNIT_PATH=/opt/test/units:/opt/units /lib/systemd/systemd --system --unit=test.target --log-target=console
