//! Where the things to start lie.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The built parts and Envoy.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The `warmpath` binary.
    pub warmpath: PathBuf,
    /// The filter's wasm.
    pub filter: PathBuf,
    /// The Envoy binary.
    pub envoy: PathBuf,
}

impl Tools {
    /// Takes the paths from `WARMPATH_BIN`, `WARMPATH_FILTER` and `ENVOY`, which `scripts/test` and
    /// `scripts/run` set.
    ///
    /// # Errors
    /// Names the variable that is missing or points nowhere.
    pub fn find() -> anyhow::Result<Self> {
        Ok(Self {
            warmpath: path("WARMPATH_BIN")?,
            filter: path("WARMPATH_FILTER")?,
            envoy: path("ENVOY")?,
        })
    }
}

fn path(variable: &str) -> anyhow::Result<PathBuf> {
    let value = std::env::var_os(variable)
        .with_context(|| format!("{variable} is not set; start this by scripts/test"))?;
    let path = PathBuf::from(value);
    if !path.is_file() {
        bail!("{variable}: {} is no file", path.display());
    }
    Ok(path.canonicalize()?)
}

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Larger real data (tokenizers, captures of engines) that doesn't belong into the repository:
/// `WARMPATH_SHARED`, or `shared` beside the repository. `None` where there is none; whoever asks
/// says so aloud.
pub fn shared() -> Option<PathBuf> {
    let beside = || Some(repository().canonicalize().ok()?.parent()?.join("shared"));
    let path = std::env::var_os("WARMPATH_SHARED").map(PathBuf::from).or_else(beside)?;
    path.join("engine-captures").is_dir().then_some(path)
}
