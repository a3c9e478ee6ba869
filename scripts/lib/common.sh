# Shared by the scripts: messages and small helpers. Source it, don't run it.
# shellcheck shell=bash

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
note() { printf '    %s\n' "$*" >&2; }
die() {
    printf '\033[1;31merror:\033[0m %s\n' "$1" >&2
    shift
    for line in "$@"; do printf '       %s\n' "$line" >&2; done
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as root: as it is, or through sudo.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        die "this needs root and there is no sudo: $*" "run it yourself as root, then start again"
    fi
}

# apt_install PACKAGE...: installs Debian or Ubuntu packages that are missing.
apt_install() {
    have apt-get || die "not a Debian or Ubuntu machine, can't install: $*" "install these by hand"
    say "installing $* (apt)"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >&2 ||
        { as_root apt-get update -q >&2 &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >&2; } ||
        die "apt could not install: $*"
}
