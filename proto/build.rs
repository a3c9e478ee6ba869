//! Compiles `sidestream.proto` without `protoc`, which nobody should have to install.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/sidestream.proto");
    let files = protox::compile(["proto/sidestream.proto"], ["proto"])?;
    let grpc = std::env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure().build_client(grpc).build_server(grpc).compile_fds(files)?;
    Ok(())
}
