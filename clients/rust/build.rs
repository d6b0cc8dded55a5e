//! Generates the gRPC code from `proto/`, with protox instead of protoc, so
//! that nothing but Rust is needed to build.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);

    let files = protox::compile(
        [
            "unstuck/v1/detection_service.proto",
            "unstuck/v1/session_service.proto",
        ],
        ["proto"],
    )?;
    let descriptor_set = files.encode_to_vec();
    // Served by reflection, and read by the tests.
    fs::write(out.join("unstuck.binpb"), &descriptor_set)?;

    tonic_prost_build::configure()
        .extern_path(".google.protobuf", "::pbjson_types")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .compile_well_known_types(true)
        .compile_fds(files)?;
    pbjson_build::Builder::new()
        .register_descriptors(&descriptor_set)?
        .preserve_proto_field_names()
        .build(&[".unstuck.v1"])?;
    use_own_numbers(&out.join("unstuck.v1.serde.rs"))
}

/// Puts our reader of JSON numbers in the place of pbjson's: see
/// `src/pb/number.rs`.
fn use_own_numbers(code: &Path) -> Result<(), Box<dyn Error>> {
    const THEIRS: &str = "::pbjson::private::NumberDeserialize<";
    let text = fs::read_to_string(code)?;
    if !text.contains(THEIRS) {
        return Err("pbjson reads numbers in another way now: see src/pb/number.rs".into());
    }
    fs::write(code, text.replace(THEIRS, "self::number::Number<"))?;
    Ok(())
}
