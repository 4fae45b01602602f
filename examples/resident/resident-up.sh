#!/bin/sh
# The resident of a leg in a sandbox of its own (docs/resident.md): no network, no other process, nothing to write but
# the folder of its socket. An organiser copies this to tools/resident-up.sh (cuda: tools/serve-up.sh) of both trees and
# changes the line of the program, and what it may see: `--dev-bind /dev/nvidia0 /dev/nvidia0` and its like for a GPU.
#
#   resident-up.sh --boot --spec MODE --draft-len N --socket-out FILE
#   resident-up.sh --stop --socket PATH
set -eu
umask 022
tree=$PWD

boot() { # MODE N FILE
    base=$(mktemp -d /tmp/resident-XXXXXX)
    door=$base/door # all that the resident can write: nothing that is read or run outside lies there
    mkdir "$door"
    chmod 711 "$base" "$door"
    (
        umask 0 # a worker of another user must be able to write to the socket
        exec setsid bwrap --unshare-all --uid 65534 --gid 65534 --cap-drop ALL --new-session --clearenv \
            --setenv PATH /usr/bin --setenv LANG C.UTF-8 --setenv HOME /tmp \
            --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
            --proc /proc --dev /dev --tmpfs /tmp --ro-bind "$tree" "$tree" --bind "$door" "$door" --chdir "$tree" \
            "$tree/bin/resident" --socket "$door/socket" --spec "$1" --draft-len "$2" < /dev/null
    ) &
    pid=$!
    echo "$pid" > "$base/pid"
    while [ ! -S "$door/socket" ]; do # benchd has the deadline
        if ! kill -0 "$pid" 2> /dev/null; then
            echo "the resident ended before it had a socket" >&2
            rm -rf "$base"
            exit 1
        fi
        sleep 0.05
    done
    # A second name where the resident cannot put another file in its place.
    ln -P "$door/socket" "$base/socket"
    echo "$base/socket" > "$3"
}

stop() { # PATH
    case $1 in
    /tmp/resident-??????/socket) base=${1%/socket} ;;
    *) echo "$1 is no socket of this script" >&2 && exit 1 ;;
    esac
    [ -f "$base/pid" ] || return 0 # stopped before
    pid=$(cat "$base/pid")
    # The child of bwrap is the first process of the namespace: with it all others end.
    for first in $(cat "/proc/$pid/task/$pid/children" 2> /dev/null); do
        kill -KILL "$first" 2> /dev/null || true
    done
    kill -KILL "$pid" 2> /dev/null || true
    while kill -0 "$pid" 2> /dev/null && ! grep -q '^State:.Z' "/proc/$pid/status" 2> /dev/null; do
        sleep 0.01 # a busy machine takes a moment; benchd has the deadline
    done
    rm -rf "$base"
}

case "$*" in
"--boot --spec "*" --draft-len "*" --socket-out "*) boot "$3" "$5" "$7" ;;
"--stop --socket "*) stop "$3" ;;
*) echo "usage: --boot --spec MODE --draft-len N --socket-out FILE, or --stop --socket PATH" >&2 && exit 2 ;;
esac
