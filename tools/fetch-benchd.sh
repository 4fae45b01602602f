#!/usr/bin/env bash
# Resolves the published pair, benchd and record-correctness-golden: see --help, and docs/dist.md.
# Needs bash, curl, coreutils, sed and flock; openssl where a public key is given.
set -eu -o pipefail
export LC_ALL=C
umask 022
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
    cat <<'HELP'
usage: tools/fetch-benchd.sh

Installs benchd and record-correctness-golden as they were published for this machine, both or none. The
manifest is read first: branch and target_triple must be the ones that are wanted; then each program's size and
SHA-256 must be the manifest's. A pair that is installed and agrees with its manifest is used as it is, without
the network; one that does not agree is refused, not repaired.

environment:
  BENCHD_BRANCH            the branch whose pair is wanted (default main)
  BENCHD_DIST_BASE_URL     where pairs are published: BASE/refs/heads/BRANCH/dist/TARGET/FILE is read, with TARGET
                           linux-x86_64 or linux-aarch64. https, or http of this machine; http of another
                           with a public key only
  BENCHD_DIST_LOCAL        a folder as tools/build-dist writes it, read instead of the network
  BENCHD_BIN_DIR           where the pair is installed (default bin/ of this repository)
  BENCHD_REFRESH           1: replace what is installed, whatever it is; 0 or empty: do not
  BENCHD_DIST_PUBLIC_KEY   the publisher's public key (PEM), from where you trust it: SHA256SUMS must be signed by
                           it, whatever is installed too
  BENCHD_DIST_TOKEN        sent as "Authorization: Bearer" to the host of BENCHD_DIST_BASE_URL over https,
                           to no other after a redirect, and in no command line
  GITHUB_TOKEN             the same where there is no BENCHD_DIST_TOKEN, to github.com and githubusercontent.com only

exit codes: 0 the pair is there and agrees; 1 refused, nothing changed (INSTALLED-PAIR-REFUSED: what is installed,
PUBLISHED-PAIR-REFUSED: what is published; or a URL that is not read); 2 usage; 3 something cannot be read, fetched
or written, nothing changed; 130 interrupted, nothing changed
HELP
}

say() { printf 'fetch-benchd: %s\n' "$*"; }
stop() { # STATUS TEXT
    printf 'fetch-benchd: %s\n' "${2//[[:cntrl:]]/?}" >&2 # it may quote a server
    exit "$1"
}

if [ $# -gt 0 ]; then
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    *) stop 2 "unknown argument '$1'; try --help" ;;
    esac
fi

programs=(benchd record-correctness-golden)
manifest=benchd.manifest.json
sums=SHA256SUMS
signature=SHA256SUMS.sig
text_max=65536
# Visible ASCII without the two characters that end a quoted setting of curl.
visible='^[]!#-[^-~]*$'
branch=${BENCHD_BRANCH:-main}
base=${BENCHD_DIST_BASE_URL:-}
base=${base%/}
from=${BENCHD_DIST_LOCAL:-}
bin=${BENCHD_BIN_DIR:-$root/bin}
key=${BENCHD_DIST_PUBLIC_KEY:-}

case "$(uname -s) $(uname -m)" in
"Linux x86_64") target=linux-x86_64 triple=x86_64-unknown-linux-gnu ;;
"Linux aarch64") target=linux-aarch64 triple=aarch64-unknown-linux-gnu ;;
*) stop 1 "nothing is published for $(uname -s) $(uname -m): linux-x86_64 and linux-aarch64 are" ;;
esac
[[ $branch =~ ^[A-Za-z0-9_][A-Za-z0-9._/-]*$ && $branch != *..* ]] ||
    stop 2 "BENCHD_BRANCH is '$branch', which is no branch's name"
case ${BENCHD_REFRESH:-0} in
0 | 1) refresh=${BENCHD_REFRESH:-0} ;;
*) stop 2 "BENCHD_REFRESH is '$BENCHD_REFRESH', expected 1 or 0" ;;
esac
if [ -n "$key" ]; then
    [[ -f $key && -r $key ]] || stop 3 "BENCHD_DIST_PUBLIC_KEY: $key cannot be read"
    command -v openssl >/dev/null || stop 3 "BENCHD_DIST_PUBLIC_KEY is given, and openssl is not installed"
fi

# ---- what a pair must be ----
# Each check sets why and is false where something is wrong.

why=
sha256_of() { sha256sum <"$1" | cut -d' ' -f1; }

# What a manifest says: the values of keys that have their line to themselves, and of each program's keys in the
# program's line. A key that stands there twice has a value that nothing expects.
declare -A says
read_manifest() { # FILE
    local line name key space='[[:space:]]*'
    local plain="^$space\"([^\"]+)\"$space:$space\"?([^\",{}]*)\"?$space,?$space\$"
    local program="^$space\"([^\"]+)\"$space:$space\{(.+)\}$space,?$space\$"
    says=()
    while IFS= read -r line || [ -n "$line" ]; do
        if [[ $line =~ $plain ]]; then
            tell "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
        elif [[ $line =~ $program ]]; then
            name=${BASH_REMATCH[1]} line=${BASH_REMATCH[2]}
            for key in sha256 bytes; do
                [[ ! $line =~ \"$key\"$space:$space\"?([^\",{}]*) ]] || tell "$name.$key" "${BASH_REMATCH[1]}"
            done
        fi
    done <"$1"
}
tell() { # KEY VALUE
    says[$1]=${says[$1]+${says[$1]} and }$2
}
must_be() { # FILE KEY PATTERN MEANING
    [[ ${says[$2]-} =~ $3 ]] && return
    why="$1: $2 is '${says[$2]-}', expected $4"
    return 1
}

check_manifest() { # FOLDER
    local file=$1/$manifest size program
    why="$file: is missing"
    [ -f "$file" ] || return 1
    size=$(stat -Lc %s "$file")
    why="$file: $size bytes, expected $text_max at most"
    [ "$size" -le $text_max ] || return 1
    why="$file: holds a byte that is no printable ASCII"
    [ "$(tr -d '\t\r\n\040-\176' <"$file" | wc -c)" -eq 0 ] || return 1
    read_manifest "$file"
    must_be "$file" branch "^${branch//./\\.}\$" "$branch (BENCHD_BRANCH)" || return 1
    must_be "$file" target_triple "^$triple\$" "$triple (this machine)" || return 1
    must_be "$file" version '^[^[:space:]]+$' "a version" || return 1
    must_be "$file" source_commit '^[0-9a-f]{40}$' "40 hexadecimal digits" || return 1
    why="$file: source_commit is 40 zeros: the pair was built from sources that no commit held"
    [ "${says[source_commit]}" != 0000000000000000000000000000000000000000 ] || return 1
    for program in "${programs[@]}"; do
        must_be "$file" "$program.sha256" '^[0-9a-f]{64}$' "64 hexadecimal digits" || return 1
        must_be "$file" "$program.bytes" '^[1-9][0-9]{0,9}$' "a count of bytes" || return 1
    done
    must_be "$file" sha256 "^${says[benchd.sha256]}\$" "${says[benchd.sha256]}, as of binaries.benchd" || return 1
    must_be "$file" bytes "^${says[benchd.bytes]}\$" "${says[benchd.bytes]}, as of binaries.benchd" || return 1
}

check_program() { # FOLDER PROGRAM, after its manifest
    local file=$1/$2 actual
    why="$file: is missing"
    [ -f "$file" ] || return 1
    actual=$(stat -Lc %s "$file")
    why="$file: is $actual bytes, expected ${says[$2.bytes]} ($1/$manifest)"
    [ "$actual" = "${says[$2.bytes]}" ] || return 1
    actual=$(sha256_of "$file")
    why="$file: its SHA-256 is $actual, expected ${says[$2.sha256]} ($1/$manifest)"
    [ "$actual" = "${says[$2.sha256]}" ] || return 1
}

# SHA256SUMS is signed and names the manifest; the manifest names the programs.
check_signature() { # FOLDER
    [ -n "$key" ] || return 0
    local file named
    for file in "$1/$sums" "$1/$signature"; do
        why="$file: is missing, and BENCHD_DIST_PUBLIC_KEY asks for a signature"
        [ -f "$file" ] || return 1
    done
    why="$1/$signature: is no signature of $sums by the key $key"
    openssl pkeyutl -verify -pubin -inkey "$key" -rawin -in "$1/$sums" -sigfile "$1/$signature" >/dev/null 2>&1 || return 1
    named=$(sed -n "s/^\([0-9a-f]\{64\}\)  $manifest\$/\1/p" "$1/$sums")
    why="$1/$manifest: its SHA-256 is $(sha256_of "$1/$manifest"), expected '$named' ($1/$sums)"
    [ "$named" = "$(sha256_of "$1/$manifest")" ] || return 1
}

check_pair() { # FOLDER
    local program
    check_manifest "$1" && check_signature "$1" || return 1
    for program in "${programs[@]}"; do
        check_program "$1" "$program" || return 1
        why="$1/$program: cannot be run (its mode)"
        [ -x "$1/$program" ] || return 1
    done
}

# ---- where it lies ----
# BIN_DIR/benchd and the others are links through BIN_DIR/.benchd-pair, itself a link to the folder of one
# pair: renaming a new link over that one changes all of them at once, and a kill leaves the old or the new.

link=.benchd-pair
work=
finish() {
    [ -z "$work" ] || rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

installed_files() {
    local name
    for name in "${programs[@]}" "$manifest"; do
        [ ! -e "$bin/$name" ] || printf '%s\n' "$name"
    done
}

# Of an installation of ours the folder behind the link, so that signature and all are of one moment.
installed_folder() {
    local name
    for name in "${programs[@]}" "$manifest"; do
        [ "$(readlink "$bin/$name" || true)" = "$link/$name" ] || {
            printf '%s' "$bin"
            return
        }
    done
    printf '%s' "$bin/$link"
}

use_installed() {
    [ "$refresh" = 0 ] && [ -n "$(installed_files)" ] || return 0
    check_pair "$(installed_folder)" ||
        stop 1 "INSTALLED-PAIR-REFUSED: $why; BENCHD_REFRESH=1 replaces what is installed"
    say "$bin: $branch at ${says[source_commit]}, installed before"
    exit 0
}

point_to() { # FOLDER: the moment at which a pair is installed
    ln -s "$(basename "$1")" "$bin/$link.link"
    mv -fT "$bin/$link.link" "$bin/$link"
}

install_pair() {
    local name old
    for name in "${programs[@]}" "$manifest"; do
        [ ! -d "$bin/$name" ] || stop 1 "$bin/$name: is a folder"
    done
    [[ -L $bin/$link || ! -e $bin/$link ]] || stop 1 "$bin/$link: expected a link or nothing, found another thing"
    if [ -n "$(installed_files)" ] && [ "$(installed_folder)" = "$bin" ]; then
        # Files that were put there otherwise become a pair behind the link first: nothing changes yet.
        old=$(mktemp -d "$bin/$link.XXXXXX")
        for name in $(installed_files); do cp -pL "$bin/$name" "$old/$name"; done
        point_to "$old"
    fi
    for name in "${programs[@]}" "$manifest"; do
        [ "$(readlink "$bin/$name" || true)" = "$link/$name" ] && continue
        ln -s "$link/$name" "$bin/$link.link"
        mv -fT "$bin/$link.link" "$bin/$name"
    done
    old=$work
    work= # from here on it is not ours to remove
    point_to "$old"
}

# What killed runs and earlier pairs left; only with the lock held.
sweep() {
    local path current
    current=$(readlink "$bin/$link" || true)
    for path in "$bin/$link".*; do
        case ${path##*/} in
        "$link.lock" | "$current" | '.benchd-pair.*') ;;
        *) rm -rf "$path" ;;
        esac
    done
}

# ---- where it comes from ----

is_here() { [[ $1 =~ ^http://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?$ ]]; } # ORIGIN

# Scheme, host and port, in lower case; two spellings of one origin count as two.
origin_of() { # URL
    [[ $1 =~ ^[Hh][Tt][Tt][Pp][Ss]?://[^/?#]+ ]] || return 0
    printf '%s' "${BASH_REMATCH[0],,}"
}

check_url() { # URL
    local origin
    origin=$(origin_of "$1")
    [[ $1 =~ $visible && -n $origin ]] || stop 1 "'${1:0:200}' is no http or https URL"
    [[ $origin != *@* ]] || stop 1 "a URL with a user's name in it is refused: give BENCHD_DIST_TOKEN"
    [[ $origin == https://* || -n $key ]] || is_here "$origin" ||
        stop 1 "$1: plain http of another machine needs BENCHD_DIST_PUBLIC_KEY"
}

token_for() { # URL: the token, where this URL may have one
    local origin host token=${BENCHD_DIST_TOKEN:-}
    origin=$(origin_of "$1")
    [ "$origin" = "$(origin_of "$base")" ] || return 0
    [[ $origin == https://* ]] || is_here "$origin" || return 0
    host=${origin#*://}
    if [ -z "$token" ] && [[ ${host%%:*} =~ ^((.*\.)?github\.com|(.*\.)?githubusercontent\.com)$ ]]; then
        token=${GITHUB_TOKEN:-}
    fi
    printf '%s' "$token"
}

# What curl is told on its standard input, where no list of processes shows it.
curl_settings() { # URL
    local token
    token=$(token_for "$1")
    printf 'url = "%s"\n' "$1"
    [ -z "$token" ] || printf 'header = "Authorization: Bearer %s"\n' "$token"
}

# One answer, "STATUS LOCATION"; redirects are followed by the caller. A body past the limit ends curl.
ask() { # URL FILE LIMIT
    curl_settings "$1" | (
        ulimit -c 0 -f $(($3 / 1024 + 1))
        exec curl -q --config - --output "$2" --globoff --silent --show-error --proto =http,https --connect-timeout 30 \
            --speed-limit 1024 --speed-time 60 --write-out '%{http_code} %{redirect_url}' 9>&-
    )
}

download() { # URL FILE LIMIT
    local url=$1 answer status hops=0
    while :; do
        check_url "$url"
        rm -f "$2"
        status=0
        answer=$(ask "$url" "$2" "$3" 2>"$work/said") || status=$?
        if [ $status -ne 0 ]; then
            [ ! -f "$2" ] || [ "$(stat -c %s "$2")" -le "$3" ] ||
                stop 1 "$url: sends more than $3 bytes"
            [ $status -ne 23 ] || stop 3 "$2: cannot be written: the disk is full, or a limit is reached (of $url)"
            stop 3 "$url: cannot be fetched: $(head -n 1 "$work/said" | cut -c1-200) (curl's status $status)"
        fi
        case ${answer%% *} in
        200) break ;;
        301 | 302 | 303 | 307 | 308)
            hops=$((hops + 1))
            [ $hops -le 5 ] || stop 3 "$url: the sixth redirect is not followed"
            [[ $url != https://* || ${answer#* } == https://* ]] ||
                stop 1 "$url: a redirect from https to '${answer#* }' is not followed"
            url=${answer#* }
            ;;
        *) stop 3 "$url: HTTP status ${answer%% *}, expected 200" ;;
        esac
    done
    [ -f "$2" ] || : >"$2"
}

get() { # NAME LIMIT: into the work folder
    local source=$place/$1
    if [ -z "$from" ]; then
        download "$source" "$work/$1" "$2"
        return
    fi
    [ -f "$source" ] || stop 3 "$source: there is no such file (BENCHD_DIST_LOCAL)"
    [ "$(stat -Lc %s "$source")" -le "$2" ] ||
        stop 1 "$source: is $(stat -Lc %s "$source") bytes, expected $2 at most"
    cp -L "$source" "$work/$1" || stop 3 "$source: cannot be copied"
}

fetched() { # CHECK ARGUMENTS: the reason names where the file came from, not our folder
    "$@" && return
    stop 1 "PUBLISHED-PAIR-REFUSED: ${why//"$work"/"$place"}; nothing was installed"
}

# ---- the run ----

# Where nothing can be written nobody else writes either.
mkdir -p "$bin" 2>/dev/null || true
if [ ! -d "$bin" ] || [ ! -w "$bin" ]; then
    use_installed
    stop 3 "$bin: is no folder that can be written"
fi
# Nothing that stands there is written to: neither what a link leads to nor a pipe that nobody reads.
[[ ! -L $bin/$link.lock && (! -e $bin/$link.lock || -f $bin/$link.lock) ]] ||
    stop 3 "$bin/$link.lock: expected a file of this script or nothing, found another thing"
{ exec 9>>"$bin/$link.lock"; } 2>/dev/null || stop 3 "$bin/$link.lock: cannot be written"
flock -n 9 || {
    say "another fetch is at work in $bin: waiting for it"
    flock 9
}
use_installed
[ -n "$from$base" ] || stop 2 "nothing is installed in $bin: give BENCHD_DIST_BASE_URL or BENCHD_DIST_LOCAL"
if [ -z "$from" ]; then
    command -v curl >/dev/null || stop 3 "curl is not installed"
    [[ ${BENCHD_DIST_TOKEN:-}${GITHUB_TOKEN:-} =~ $visible ]] ||
        stop 2 "BENCHD_DIST_TOKEN or GITHUB_TOKEN holds a character that no token has"
    [ -z "${BENCHD_DIST_TOKEN:-}" ] || [[ $(origin_of "$base") == https://* ]] || is_here "$(origin_of "$base")" ||
        stop 1 "$base: BENCHD_DIST_TOKEN is not sent over plain http"
fi
place=$base/refs/heads/$branch/dist/$target
if [ -n "$from" ]; then
    place=$from
    [ ! -d "$from/$target" ] || place=$from/$target
fi
sweep
work=$(mktemp -d "$bin/$link.XXXXXX") || stop 3 "$bin: cannot be written"
chmod 755 "$work"
get "$manifest" $text_max
fetched check_manifest "$work"
if [ -n "$key" ]; then
    get "$sums" $text_max
    get "$signature" $text_max
    fetched check_signature "$work"
fi
for program in "${programs[@]}"; do
    get "$program" "${says[$program.bytes]}"
    fetched check_program "$work" "$program"
    chmod 755 "$work/$program"
done
rm -f "$work/said"
sync "$work"/* || stop 3 "$work: cannot be written to the disk"
install_pair
sweep
say "$bin: $branch at ${says[source_commit]}, installed"
