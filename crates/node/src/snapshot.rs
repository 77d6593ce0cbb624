//! Snapshots: the state at one index, as a file, as a stream to a peer, and as a backup. All three
//! are the same bytes.
//!
//! ```text
//! image = magic (8 bytes) · version (1 byte) · block* · end
//! block = length u32 · check u32 · bytes          the first one is the Meta, the others the state
//! end   = 0 u32      · check u32
//! ```
//!
//! Numbers are little endian. A check is the CRC-32C of all blocks' bytes up to and with this one,
//! so that a block that is damaged, missing, doubled or out of place is found where it stands.
//!
//! A file is written aside, synced, renamed to its name, and its directory synced: under that name
//! it is whole, or the disk has lied. The state itself is checked again by
//! [`StateMachine::read_snapshot`].

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper_core::StateMachine;

use crate::codec::{self, Meta};
use crate::{Disk, DiskFile, Fault};

const MAGIC: &[u8; 8] = b"LKIMAGE\n";
const VERSION: u8 = 1;

/// Bytes of a full block.
const BLOCK_BYTES: usize = 256 << 10;

/// What a block's length may be when it is read: bytes from outside are not believed further.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// A snapshot on disk. Clones share the open file, which outlives its name.
#[derive(Clone)]
pub(crate) struct SnapshotFile {
    pub(crate) meta: Meta,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) len: u64,
    /// The state that was read from it, if it was received: it is checked before it is installed.
    pub(crate) state: Option<StateMachine>,
}

/// The directory of the snapshots.
#[derive(Clone)]
pub(crate) struct SnapshotStore {
    directory: PathBuf,
    disk: Arc<dyn Disk>,
}

impl SnapshotStore {
    pub(crate) fn new(directory: PathBuf, disk: Arc<dyn Disk>) -> Self {
        Self { directory, disk }
    }

    /// Opens the newest snapshot and reads it, and removes what earlier runs left half done.
    ///
    /// # Errors
    ///
    /// [`Fault::Corrupted`] if its bytes aren't what was written, [`Fault::Disk`].
    pub(crate) fn load(&self) -> Result<Option<(SnapshotFile, StateMachine)>, Fault> {
        let failed = |error: io::Error| {
            Fault::Disk(format!("reading the snapshots in {}: {error}", self.directory.display()))
        };
        self.disk.create_dir(&self.directory).map_err(failed)?;
        let mut files = self.disk.list(&self.directory).map_err(failed)?;
        files.retain(|path| {
            let is_snapshot = index_of(path).is_some();
            // It is in nobody's way if it can't be removed.
            let _ = is_snapshot || self.disk.remove(path).is_ok();
            is_snapshot
        });
        let Some(path) = files.into_iter().max_by_key(|path| index_of(path)) else {
            return Ok(None);
        };
        let file: Arc<dyn DiskFile> = self.disk.open(&path, false).map_err(failed)?.into();
        let len = file.len().map_err(failed)?;
        let (meta, state) = read_image(&mut FileReader::new(&*file)).map_err(|error| {
            use io::ErrorKind::{InvalidData, UnexpectedEof};
            match error.kind() {
                InvalidData | UnexpectedEof => Fault::Corrupted {
                    what: format!("the snapshot {}", path.display()),
                    detail: error.to_string(),
                },
                _ => failed(error),
            }
        })?;
        Ok(Some((SnapshotFile { meta, path, file, len, state: None }, state)))
    }

    /// Writes a snapshot. Takes time linear in the state.
    ///
    /// # Errors
    ///
    /// Those of the disk; one of kind `Other` as soon as it isn't wanted any more.
    pub(crate) fn build(
        &self,
        meta: Meta,
        state: &StateMachine,
        is_wanted: impl Fn() -> bool,
    ) -> io::Result<SnapshotFile> {
        let path = self.directory.join("building");
        let file = self.create(&path)?;
        let mut writer = FileWriter { file: &*file, offset: 0, synced: 0, is_wanted };
        write_image(&mut writer, &meta, state)?;
        let len = writer.offset;
        self.keep(SnapshotFile { meta, path, file, len, state: None })
    }

    /// An empty file for a snapshot that is about to be received.
    pub(crate) fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.disk.open(path, true)?;
        file.set_len(0)?;
        Ok(file.into())
    }

    /// Where a snapshot from `peer` is put while it comes.
    pub(crate) fn receiving(&self, peer: u64) -> PathBuf {
        self.directory.join(format!("receiving-{peer}"))
    }

    /// Makes a written file the newest snapshot, durably, and removes the older ones.
    pub(crate) fn keep(&self, snapshot: SnapshotFile) -> io::Result<SnapshotFile> {
        snapshot.file.sync_data()?;
        let path = self.directory.join(name(snapshot.meta.index()));
        self.disk.rename(&snapshot.path, &path)?;
        self.disk.sync_dir(&self.directory)?;
        for older in self.disk.list(&self.directory)? {
            if index_of(&older).is_some_and(|index| index < snapshot.meta.index()) {
                self.disk.remove(&older)?;
            }
        }
        Ok(SnapshotFile { path, ..snapshot })
    }
}

/// In the order of the names, the newest comes last.
fn name(index: u64) -> String {
    format!("snapshot-{index:020}")
}

fn index_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("snapshot-")?.parse().ok()
}

/// Writes an image.
pub(crate) fn write_image(
    out: &mut impl Write,
    meta: &Meta,
    state: &StateMachine,
) -> io::Result<()> {
    out.write_all(MAGIC)?;
    out.write_all(&[VERSION])?;
    let mut blocks = BlockWriter { out, block: Vec::with_capacity(BLOCK_BYTES), check: 0 };
    codec::encode_to(meta, &mut blocks.block);
    blocks.end_block()?;
    state.write_snapshot(&mut blocks)?;
    blocks.finish()
}

/// Reads an image and checks every byte of it.
///
/// # Errors
///
/// `InvalidData` or `UnexpectedEof` if it isn't what was written, and those of `input`.
pub(crate) fn read_image(input: &mut impl Read) -> io::Result<(Meta, StateMachine)> {
    let mut opening = [0; MAGIC.len() + 1];
    input.read_exact(&mut opening)?;
    let [magic @ .., version] = &opening;
    if magic != MAGIC {
        return Err(invalid("it is no snapshot of lockkeeper"));
    }
    if *version != VERSION {
        return Err(invalid(&format!("it has version {version}; this program reads {VERSION}")));
    }
    let mut blocks = BlockReader { input, block: Vec::new(), read: 0, check: 0, is_over: false };
    blocks.next_block()?;
    let meta = codec::decode::<Meta>(&blocks.block)
        .filter(|meta| meta.stored_membership().is_some())
        .ok_or_else(|| invalid("its first block is no head"))?;
    blocks.read = blocks.block.len();
    let state = StateMachine::read_snapshot(&mut blocks)?;
    blocks.expect_end()?;
    Ok((meta, state))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

struct BlockWriter<'a, W> {
    out: &'a mut W,
    block: Vec<u8>,
    check: u32,
}

impl<W: Write> BlockWriter<'_, W> {
    fn end_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        self.check = crc32c::crc32c_append(self.check, &self.block);
        let length = u32::try_from(self.block.len()).expect("blocks are small");
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(&self.check.to_le_bytes())?;
        self.out.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.end_block()?;
        self.out.write_all(&0u32.to_le_bytes())?;
        self.out.write_all(&self.check.to_le_bytes())
    }
}

impl<W: Write> Write for BlockWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(BLOCK_BYTES - self.block.len());
        self.block.extend_from_slice(&bytes[..taken]);
        if self.block.len() == BLOCK_BYTES {
            self.end_block()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct BlockReader<'a, R> {
    input: &'a mut R,
    block: Vec<u8>,
    /// How much of the block has been given out.
    read: usize,
    check: u32,
    is_over: bool,
}

impl<R: Read> BlockReader<'_, R> {
    fn next_block(&mut self) -> io::Result<()> {
        let mut head = [0; 8];
        self.input.read_exact(&mut head)?;
        let [a, b, c, d, check @ ..] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > BLOCK_BYTES_MAX {
            return Err(invalid("a block's length is out of range"));
        }
        self.block.resize(length, 0);
        self.read = 0;
        self.input.read_exact(&mut self.block)?;
        self.check = crc32c::crc32c_append(self.check, &self.block);
        if self.check != u32::from_le_bytes(check) {
            return Err(invalid("a block's checksum doesn't match its bytes"));
        }
        self.is_over = length == 0;
        Ok(())
    }

    fn expect_end(&mut self) -> io::Result<()> {
        if self.read == self.block.len() && !self.is_over {
            self.next_block()?;
        }
        if self.is_over { Ok(()) } else { Err(invalid("there is more than the state in it")) }
    }
}

impl<R: Read> Read for BlockReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read == self.block.len() && !self.is_over {
            self.next_block()?;
        }
        let count = buffer.len().min(self.block.len() - self.read);
        buffer[..count].copy_from_slice(&self.block[self.read..self.read + count]);
        self.read += count;
        Ok(count)
    }
}

/// Writes a file from its start, and has the disk keep up: one large fsync at the end would make
/// the log's wait behind it.
struct FileWriter<'a, F> {
    file: &'a dyn DiskFile,
    offset: u64,
    synced: u64,
    is_wanted: F,
}

/// Bytes written between two fsyncs.
const SYNC_BYTES: u64 = 2 << 20;

impl<F: Fn() -> bool> Write for FileWriter<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !(self.is_wanted)() {
            return Err(io::Error::other("the snapshot isn't wanted any more"));
        }
        self.file.write_all_at(bytes, self.offset)?;
        self.offset += bytes.len() as u64;
        if self.offset - self.synced >= SYNC_BYTES {
            self.file.sync_data()?;
            self.synced = self.offset;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a file from its start.
pub(crate) struct FileReader<'a> {
    file: &'a dyn DiskFile,
    offset: u64,
}

impl<'a> FileReader<'a> {
    pub(crate) fn new(file: &'a dyn DiskFile) -> Self {
        Self { file, offset: 0 }
    }
}

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{ClusterId, Command, Stamp};

    use super::*;

    fn image() -> Vec<u8> {
        let mut state = StateMachine::default();
        let found = Command::FoundCluster { cluster: ClusterId(7) };
        state.apply(Stamp(1), &found, &mut Vec::new());
        let mut image = Vec::new();
        write_image(&mut image, &Meta::default(), &state).unwrap();
        image
    }

    #[test]
    fn an_image_is_read_as_it_was_written() {
        let (meta, state) = read_image(&mut &image()[..]).unwrap();
        assert_eq!((meta, state.cluster()), (Meta::default(), Some(ClusterId(7))));
    }

    #[test]
    fn damage_is_found_wherever_it_is() {
        let image = image();
        for end in 0..image.len() {
            assert!(read_image(&mut &image[..end]).is_err(), "cut at {end}");
        }
        for place in 0..image.len() {
            let mut damaged = image.clone();
            damaged[place] ^= 1;
            assert!(read_image(&mut &damaged[..]).is_err(), "flipped at {place}");
        }
    }
}
