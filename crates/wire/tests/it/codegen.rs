//! The committed protobuf code is what `proto/` says; `UPDATE=1` rewrites it.
//!
//! Nobody needs a `protoc`: the compiler is `protox`, and only this test runs it.

use std::fs;
use std::path::{Path, PathBuf};

use prost_build::Module;

const PROTO: &str = "native.proto";
const PACKAGE: &str = "lockkeeper.native.v1";

#[test]
fn generated_code_is_what_the_proto_file_says() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed_path = package.join("src/native/generated.rs");
    let generated = generate(&package.join("proto"));
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&committed_path, &generated).expect("the generated file can be written");
    }
    let committed = fs::read_to_string(&committed_path).unwrap_or_default();
    assert!(
        committed == generated,
        "{} is not what {PROTO} says; run `UPDATE=1 cargo test -p lockkeeper-wire`",
        committed_path.display()
    );
}

fn generate(proto_dir: &Path) -> String {
    let files = protox::compile([PROTO], [proto_dir]).expect("the proto file compiles");
    let module = Module::from_protobuf_package_name(PACKAGE);
    let file = files.file.into_iter().next().expect("one file");
    let mut modules = prost_build::Config::new()
        .out_dir(PathBuf::new())
        .generate(vec![(module.clone(), file)])
        .expect("code can be generated");
    modules.remove(&module).expect("the one module")
}
