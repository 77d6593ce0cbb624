//! The embedded node of this user on this machine: where it listens, and who may start it.
//!
//! The node itself is part of the `lockkeeper` program, not of this library: a program that wants
//! `embedded:` to work without one running brings a [`Starter`].

use std::fmt;
use std::fs;
use std::future::Future;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use crate::error::Error;

/// Starts the embedded node when nobody listens on its socket.
pub trait Starter: Send + Sync + fmt::Debug + 'static {
    /// Returns once a node (whoever started it) listens, or says why there is none. It may be
    /// called again whenever the node can't be reached.
    fn start(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>>;
}

/// The directory of this user's embedded node on this machine. It has mode 0700: who can enter it
/// can take this user's locks.
///
/// It is keyed by the machine's id, because home directories are shared between machines and a
/// node isn't: `$XDG_STATE_HOME/lockkeeper/embedded-<machine id>`, by default under
/// `~/.local/state`.
///
/// # Errors
///
/// [`Error::Config`] if there is neither `XDG_STATE_HOME` nor `HOME`, or no machine id.
pub fn directory() -> Result<PathBuf, Error> {
    let state = match std::env::var_os("XDG_STATE_HOME").map(PathBuf::from) {
        Some(path) if path.is_absolute() => path,
        _ => match std::env::var_os("HOME").map(PathBuf::from) {
            Some(home) if home.is_absolute() => home.join(".local/state"),
            _ => {
                let what = "the embedded node needs a directory: set HOME or XDG_STATE_HOME";
                return Err(Error::Config(what.to_owned()));
            }
        },
    };
    Ok(state.join("lockkeeper").join(format!("embedded-{}", machine_id()?)))
}

/// The Unix socket on which the embedded node listens, inside [`directory`].
///
/// # Errors
///
/// Those of [`directory`].
pub fn socket_path() -> Result<PathBuf, Error> {
    Ok(directory()?.join("socket"))
}

/// Whether the directory of `socket` is only ours, so that nobody else can be listening on it.
pub(crate) fn check_owner(socket: &Path) -> Result<(), String> {
    let Some(directory) = socket.parent() else { return Ok(()) };
    // An absent directory is no danger: nothing listens in it.
    let Ok(metadata) = fs::metadata(directory) else { return Ok(()) };
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || metadata.mode() & 0o077 != 0 {
        let name = directory.display();
        return Err(format!("{name} must belong to you, with mode 0700 (chmod 700 {name})"));
    }
    Ok(())
}

fn machine_id() -> Result<String, Error> {
    for path in ["/etc/machine-id", "/var/lib/dbus/machine-id"] {
        let id = fs::read_to_string(path).unwrap_or_default();
        let id = id.trim();
        if !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(id.to_owned());
        }
    }
    // Containers and other systems have no such file; a host name tells machines that share a home
    // directory apart as well as anything else there.
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() || name.contains('/') {
        let what = "the embedded node needs a machine id: /etc/machine-id is missing or empty";
        return Err(Error::Config(what.to_owned()));
    }
    Ok(format!("host-{name}"))
}
