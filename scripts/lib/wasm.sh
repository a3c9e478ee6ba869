# The toolchain for wasm. Source it after common.sh; ROOT is the repository.
# shellcheck shell=bash

# The filter's target; tests of the pure crate set another.
WASM_TARGET=wasm32-wasip1

# The packages of the second way below.
WASM_DEBIAN_PACKAGES=(rustc-web rust-web-src wasi-libc)

wasm_rustup_has_target() {
    have rustup && rustup target list --installed 2>/dev/null | grep -qx "$WASM_TARGET"
}

wasm_debian_ready() {
    [ -x /usr/bin/rustc ] && [ -d /usr/lib/wasm32-wasi ] &&
        [ -f "$(/usr/bin/rustc --print sysroot)/lib/rustlib/src/rust/library/std/Cargo.toml" ]
}

# wasm_setup [TARGET]: sets up one of two ways and leaves in WASM_CARGO_ENV what cargo's environment needs, and in
# WASM_CARGO_ARGS what its command line needs:
#   1. rustup's own standard library for the target;
#   2. where rustup can't fetch that, Debian's compiler and sources of the library, which cargo
#      then builds itself (about a minute, once).
# WASM_TOOLCHAIN=rustup or =debian insists on one of them.
wasm_setup() {
    WASM_TARGET=${1:-$WASM_TARGET}
    WASM_CARGO_ARGS=(--target "$WASM_TARGET")
    have cargo || die "cargo not found" "install Rust: https://rustup.rs"
    local way=${WASM_TOOLCHAIN:-} upper flags
    upper=${WASM_TARGET^^}
    upper=${upper//-/_}
    # Hashing is much of the work for a known prefix, and BLAKE3 has vector code (its feature
    # wasm32_simd), which V8 runs.
    flags="-C target-feature=+simd128"
    WASM_CARGO_ENV=("CARGO_TARGET_${upper}_RUSTFLAGS=$flags")
    if [ "$way" != debian ] && wasm_rustup_has_target; then
        return
    fi
    if [ "$way" = rustup ] || { [ "$way" != debian ] && ! wasm_debian_ready; }; then
        say "adding the target $WASM_TARGET (rustup)"
        if have rustup && timeout 300 rustup target add "$WASM_TARGET" >&2; then
            return
        fi
        [ "$way" != rustup ] || die "rustup could not add the target $WASM_TARGET"
    fi
    if ! wasm_debian_ready; then
        note "rustup can't fetch it; Debian's compiler builds the standard library instead"
        apt_install "${WASM_DEBIAN_PACKAGES[@]}"
        wasm_debian_ready || die "the packages ${WASM_DEBIAN_PACKAGES[*]} are installed but incomplete" \
            "expected /usr/bin/rustc, its library sources and /usr/lib/wasm32-wasi"
    fi
    WASM_CARGO_ENV=(
        "RUSTC=/usr/bin/rustc"
        "RUSTC_BOOTSTRAP=1"
        "CARGO_TARGET_${upper}_LINKER=$(wasm_linker)"
    )
    [ "$WASM_TARGET" != wasm32-wasip1 ] || flags+=" -L native=/usr/lib/wasm32-wasi"
    WASM_CARGO_ENV+=("CARGO_TARGET_${upper}_RUSTFLAGS=$flags")
    WASM_CARGO_ARGS+=(-Zbuild-std=std,panic_abort)
}

# A linker that writes wasm: the one inside the rustup toolchain, or Debian's.
wasm_linker() {
    local lld
    if have rustup; then
        lld=$(find "$(rustup run stable rustc --print sysroot 2>/dev/null || rustc --print sysroot)/lib/rustlib" \
            -path '*/bin/rust-lld' 2>/dev/null | head -n 1)
        if [ -n "$lld" ]; then
            echo "$lld"
            return
        fi
    fi
    have wasm-ld || apt_install lld
    command -v wasm-ld || ls /usr/bin/wasm-ld-* 2>/dev/null | sort -V | tail -n 1
}

node_setup() {
    have node || apt_install nodejs
}

# Prints the path of the runner of wasm-bindgen tests, of the very version that Cargo.lock names.
wasm_test_runner() {
    local version dir
    version=$(sed -n '/^name = "wasm-bindgen"$/{n;s/^version = "\(.*\)"$/\1/p}' "$ROOT/Cargo.lock")
    [ -n "$version" ] || die "Cargo.lock names no wasm-bindgen"
    dir=$ROOT/target/tools/wasm-bindgen-$version
    if [ ! -x "$dir/bin/wasm-bindgen-test-runner" ]; then
        say "building wasm-bindgen-test-runner $version (once, a few minutes)"
        cargo install -q wasm-bindgen-cli --version "$version" --root "$dir" \
            --target-dir "$ROOT/target/tools/build" --bin wasm-bindgen-test-runner >&2 ||
            die "wasm-bindgen-cli $version could not be built"
        rm -rf "$ROOT/target/tools/build"
    fi
    echo "$dir/bin/wasm-bindgen-test-runner"
}
