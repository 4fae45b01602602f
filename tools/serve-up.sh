#!/bin/sh
# The resident of a leg of this engine (docs/resident.md): `bench-worker resident` in a sandbox of its own, without
# network, other processes or anything to write but the folder of its socket. benchd runs it in a ranked run of a track
# on cuda; a copy named tools/resident-up.sh serves any other track's.
#
#   serve-up.sh --boot --spec serial|dflash --draft-len N --socket-out FILE
#   serve-up.sh --stop --socket PATH
#
# Environment: BENCH_WORKER_RESIDENT_ENGINE (build/cuda/bench-worker where that is and cuda is wanted, else
# build/bench-worker), BENCH_WORKER_RESIDENT_WEIGHTS (weights), both from the tree; BENCH_WORKER_DRAFTER;
# BENCH_WORKER_BACKEND (cuda; of a copy cpu); BENCH_WORKER_BOX_LOCK, the lock that whoever measures on the box holds;
# BENCH_WORKER_RESIDENT_UNCONFINED=1 for a box without bubblewrap.
set -eu
umask 022
tree=$PWD
parent=${TMPDIR:-/tmp}
lock=${BENCH_WORKER_BOX_LOCK:-/tmp/mtplx-gpu-exclusive.lock}

die() {
    echo "$0: $*" >&2
    exit 1
}

usage() {
    echo "usage: $0 --boot --spec serial|dflash --draft-len N --socket-out FILE, or --stop --socket PATH" >&2
    exit 2
}

# Whether PID is the process that the folder BASE was made for: numbers are used again.
is_ours() { # PID BASE
    kill -0 "$1" 2> /dev/null && tr '\0' ' ' < "/proc/$1/cmdline" 2> /dev/null | grep -qF "$2/"
}

first_child() { # PID
    cut -d ' ' -f 1 "/proc/$1/task/$1/children" 2> /dev/null || true
}

end() { # BASE: by SIGTERM to the engine itself, by SIGKILL to all of it if that takes too long
    pid=$(cat "$1/socket.pid" 2> /dev/null || true)
    if [ -n "$pid" ] && is_ours "$pid" "$1"; then
        engine_pid=$pid
        while child=$(first_child "$engine_pid") && [ -n "$child" ]; do engine_pid=$child; done
        kill -TERM "$engine_pid" 2> /dev/null || true
        tries=0
        while is_ours "$pid" "$1"; do
            if [ "$tries" -eq 200 ]; then
                kill -KILL $(first_child "$pid") "$pid" 2> /dev/null || true
            fi
            tries=$((tries + 1))
            [ "$tries" -lt 400 ] || die "process $pid does not end"
            sleep 0.05
        done
    fi
    rm -rf "$1"
}

check_box() {
    command -v flock > /dev/null || die "flock is not installed"
    if [ -e "$lock" ]; then
        status=0
        flock -n -s -E 9 "$lock" true 2> /dev/null || status=$?
        [ "$status" -eq 9 ] || [ "$status" -eq 0 ] || die "the box's lock $lock cannot be looked at"
    else
        status=0
    fi
    [ "$status" -eq 9 ] || die "nobody holds the box's lock: run benchd below \`flock $lock\`"
    for other in "$parent"/mlxfast-resident-??????; do
        [ -d "$other" ] && [ -O "$other" ] || continue
        pid=$(cat "$other/socket.pid" 2> /dev/null || true)
        if [ -n "$pid" ] && is_ours "$pid" "$other"; then
            die "another resident is alive on this box: process $pid, $other/socket"
        fi
        [ -z "$pid" ] || rm -rf "$other" # one that was killed
    done
}

# What the engine may see; the program and its arguments follow.
inside() {
    exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- # the box's lock, for one, is not the engine's to hold
    if [ "${BENCH_WORKER_RESIDENT_UNCONFINED:-0}" = 1 ]; then
        exec setsid "$@"
    fi
    set -- --ro-bind "$tree" "$tree" --ro-bind "$engine" "$engine" --ro-bind "$weights" "$weights" \
        --bind "$door" "$door" --chdir "$tree" "$@"
    [ -z "$drafter" ] || set -- --ro-bind "$drafter" "$drafter" "$@"
    for device in /dev/nvidia*; do
        [ ! -e "$device" ] || set -- --dev-bind "$device" "$device" "$@"
    done
    for name in $(env | sed -n 's/^\(\(BENCH_WORKER\|DARKBLOOM\|CUDA\)_[A-Z0-9_]*\)=.*/\1/p'); do
        eval "value=\$$name"
        set -- --setenv "$name" "$value" "$@"
    done
    exec setsid bwrap --unshare-all --uid 65534 --gid 65534 --cap-drop ALL --new-session --clearenv \
        --setenv PATH /usr/bin --setenv LANG C.UTF-8 --setenv HOME /tmp \
        --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
        --ro-bind-try /etc/ld.so.cache /etc/ld.so.cache --ro-bind-try /etc/alternatives /etc/alternatives \
        --ro-bind /sys /sys --proc /proc --dev /dev --tmpfs /tmp "$@"
}

boot() { # MODE N FILE
    case $0 in */serve-up.sh) BENCH_WORKER_BACKEND=${BENCH_WORKER_BACKEND:-cuda} ;; esac
    export BENCH_WORKER_BACKEND="${BENCH_WORKER_BACKEND:-cpu}"
    drafter=
    case $1:$2 in
    serial:0) ;;
    serial:*) die "a serial leg drafts nothing: --draft-len 0" ;;
    dflash:[1-9] | dflash:1[0-5])
        [ -n "${BENCH_WORKER_DRAFTER:-}" ] || die "--spec dflash needs BENCH_WORKER_DRAFTER"
        drafter=$(readlink -e "$BENCH_WORKER_DRAFTER") || die "there is no drafter $BENCH_WORKER_DRAFTER"
        ;;
    dflash:*) die "--draft-len of dflash is 1 to 15, not $2" ;;
    *) die "this engine does not serve --spec $1" ;;
    esac
    unset BENCH_WORKER_DRAFTER
    engine=build/bench-worker
    [ "$BENCH_WORKER_BACKEND" != cuda ] || [ ! -e build/cuda/bench-worker ] || engine=build/cuda/bench-worker
    engine=$(readlink -e "${BENCH_WORKER_RESIDENT_ENGINE:-$engine}") || die "the engine is not there"
    weights=$(readlink -e "${BENCH_WORKER_RESIDENT_WEIGHTS:-weights}") || die "the weights are not there"
    check_box
    base=$(mktemp -d "$parent/mlxfast-resident-XXXXXX")
    door=$base/door # all that the engine can write: nothing that is read or run outside lies there
    mkdir "$door"
    chmod 711 "$base" "$door"
    trap 'end "$base"' EXIT
    trap 'exit 1' TERM INT HUP
    (
        trap - EXIT TERM INT HUP
        inside "$engine" resident --weights "$weights" --socket "$door/socket" --speculative-protocol v1.1 \
            ${drafter:+--drafter "$drafter"} < /dev/null > /dev/null 2> "$base/log"
    ) &
    pid=$!
    echo "$pid" > "$base/socket.pid"
    while [ ! -e "$door/socket.ready" ]; do # benchd has the deadline
        if ! kill -0 "$pid" 2> /dev/null; then
            tail -n 5 "$base/log" >&2
            die "the resident ended before it was ready"
        fi
        sleep 0.05
    done
    # A hello that a worker can attach to.
    (
        trap - EXIT TERM INT HUP
        export BENCH_WORKER_RESIDENT_SOCKET="$door/socket"
        inside "$engine" runtime-worker --weights "$weights" < /dev/null > "$base/hello" 2>> "$base/log"
    ) || { tail -n 5 "$base/log" >&2 && die "the resident does not answer"; }
    # A second name where the engine cannot put another file in its place; where benchd is root, workers are not.
    ln -P "$door/socket" "$base/socket"
    [ "$(id -u)" -ne 0 ] || chmod 666 "$base/socket"
    : > "$base/socket.ready"
    echo "$base/socket" > "$3"
    trap - EXIT
}

stop() { # PATH
    case $1 in
    "$parent"/mlxfast-resident-??????/socket) base=${1%/socket} ;;
    *) die "$1 is no socket of this script" ;;
    esac
    [ -d "$base" ] || return 0 # stopped before
    [ -O "$base" ] || die "$base is another user's"
    end "$base"
}

case $#:$* in
"7:--boot --spec "*) [ "$4 $6" = "--draft-len --socket-out" ] || usage ;;
"3:--stop --socket "*) ;;
*) usage ;;
esac
# Not in a condition, where a failure in a function goes unseen.
if [ "$1" = --stop ]; then
    stop "$3"
    exit 0
fi
boot "$3" "$5" "$7"
