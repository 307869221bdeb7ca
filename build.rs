//! Link arguments of the shared library. Writes only to OUT_DIR; the header is never made here.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    if var("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    // While the major version is 0, a new minor may break the ABI, so the minor is part of the name.
    let (major, minor) = (var("CARGO_PKG_VERSION_MAJOR"), var("CARGO_PKG_VERSION_MINOR"));
    let soname = if major == "0" { format!("libtcuda.so.0.{minor}") } else { format!("libtcuda.so.{major}") };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // Worker threads and thread-local destructors outlive a dlclose: the code stays mapped.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if var("CARGO_CFG_TARGET_ENV") == "gnu" {
        link_unwinder_statically(Path::new(&var("OUT_DIR")), &var("RUSTC_LINKER"));
    }
}

/// The standard library asks for `-lgcc_s`; a linker script of that name, found first, answers with the static unwinder, so that
/// the shared library needs libc and its loader only. Where the compiler has no static unwinder, libgcc_s stays.
fn link_unwinder_statically(out: &Path, linker: &str) {
    let linker = if linker.is_empty() { "cc" } else { linker };
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let found = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output();
    let absolute = found.is_ok_and(|answer| answer.status.success() && answer.stdout.starts_with(b"/"));
    let script = out.join("libgcc_s.so");
    if absolute && std::fs::write(&script, "/* instead of the shared unwinder */\nINPUT(-lgcc_eh -lgcc)\n").is_ok() {
        println!("cargo:rustc-cdylib-link-arg=-L{}", out.display());
    }
}
