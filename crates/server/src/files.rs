//! Open files: every connection is one, and the log must always get the next one it needs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files kept for everything but clients: the log, snapshots, 512 connections of peers and 128 of
/// strangers at their port, and clients that are just being turned away.
const RESERVED: u64 = 1_024;

/// How many of `wanted` connections this process has files for, after it has raised its own limit
/// as far as the system lets it. A log that finds no file left to open would stop the node.
pub(crate) fn room_for(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    // Without it, there is room for fewer; that is said by whoever asked.
    let _ = setrlimit(Resource::Nofile, raised);
    let room = getrlimit(Resource::Nofile).current.map(room_within);
    room.map_or(wanted, |room| wanted.min(room))
}

/// Where a process may have next to nothing, clients get half of it.
fn room_within(files: u64) -> usize {
    let room = files.saturating_sub(RESERVED).max(files / 2).max(1);
    usize::try_from(room).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_keeps_its_files() {
        let table =
            [(0, 1), (256, 128), (1_024, 512), (4_096, 3_072), (1 << 20, (1 << 20) - 1_024)];
        for (files, connections) in table {
            assert_eq!(room_within(files), connections, "of {files}");
        }
        assert_eq!(room_for(3), 3);
    }
}
