# What demo, test, check and bench need: system packages, and a private virtual environment in .venv.
# Sourced, from the project's root. Asks nothing; costs a few milliseconds when nothing changed.
#
# Exit code 3: the system lacks something and it may not be installed from here; stderr names the packages.

readonly exit_lacking=3
readonly venv=.venv
PATH=$PATH:/usr/sbin:/sbin # losetup and blkid are there, and a user's PATH often is not

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# environment_prepare run|dev: make .venv current, with the tools for development or without, and put it on PATH.
environment_prepare() {
    local kind=$1 stamp
    local -a packages=()
    stamp=$(sha256sum <pyproject.toml)
    need_to_run
    environment_is "$kind" "$stamp" || need_to_build
    install_packages "${packages[@]}"
    if ! environment_is "$kind" "$stamp"; then
        ( # one at a time: two scripts started together would install over each other
            flock 9
            environment_is "$kind" "$stamp" || environment_build "$kind" "$stamp"
        ) 9>.venv.lock || return
    fi
    PATH=$PWD/$venv/bin:$PATH
}

environment_is() { [[ -x $venv/bin/python && $(cat "$venv/kvfs-$1.stamp" 2>/dev/null) == "$2" ]]; }

environment_build() {
    local kind=$1 stamp=$2 target=. python
    [[ $kind == dev ]] && target='.[dev]'
    if ! python=$(find_python); then
        say "needs Python 3.11 or newer; this system has $(python3 --version 2>&1)"
        exit $exit_lacking
    fi
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then # absent, half made, or its Python was upgraded away
        say "making a virtual environment in $venv"
        rm -rf "$venv"
        "$python" -m venv "$venv" || return
    fi
    rm -f "$venv"/kvfs-*.stamp
    say "installing kvfs and what it needs into $venv"
    "$venv/bin/python" -m pip install --quiet --no-input --disable-pip-version-check -e "$target" \
        </dev/null >&2 || return
    echo "$stamp" >"$venv/kvfs-run.stamp"
    if [[ $kind == dev ]]; then echo "$stamp" >"$venv/kvfs-dev.stamp"; fi
}

# What is asked for is what is used, not package names: a Python from elsewhere with its headers is as good.
# They add to the caller's `packages`.
need_to_run() {
    have fusermount3 || packages+=(fuse3)
    have blkid || packages+=(util-linux)
    have losetup || packages+=(mount)
}

need_to_build() {
    local python
    { have gcc && printf '#include <stdlib.h>\n' | gcc -E - >/dev/null 2>&1; } || packages+=(gcc libc6-dev)
    have pkg-config || packages+=(pkg-config)
    { have pkg-config && pkg-config --exists fuse3; } || packages+=(libfuse3-dev)
    if ! python=$(find_python); then
        packages+=(python3 python3-venv python3-dev)
        return
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
    "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null \
        || packages+=(python3-dev)
}

need_to_lab() {
    have qemu-system-x86_64 || packages+=(qemu-system-x86)
    have setpriv || packages+=(util-linux)
    have mkfs.ext4 || packages+=(e2fsprogs)
    have mmdebstrap || packages+=(mmdebstrap)
    [[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || packages+=(debian-archive-keyring)
}

have() { command -v "$1" >/dev/null; }

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        if have $candidate && $candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo $candidate
            return
        fi
    done
    return 1
}

install_packages() {
    local -a as_root=()
    (($#)) || return 0
    have apt-get || lacking "$*" "there is no apt-get here: install what corresponds to these Debian packages"
    if ((EUID != 0)); then
        { have sudo && sudo -n true 2>/dev/null; } || lacking "$*" "install them as root: apt-get install $*"
        as_root=(sudo -n)
    fi
    say "installing system packages: $*"
    { quiet_apt update && quiet_apt install -y --no-install-recommends "$@"; } \
        || lacking "$*" "apt-get could not install them"
}

# apt-get that never asks and is silent unless it fails; another apt-get at work is waited for.
quiet_apt() {
    local output
    output=$("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=300 "$@" </dev/null 2>&1) && return
    printf '%s\n' "$output" >&2
    return 1
}

lacking() {
    say "lacks system packages: $1"
    say "$2"
    exit $exit_lacking
}
