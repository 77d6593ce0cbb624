//! What the records on disk say, taken together: the outcome of playing them in order.
//!
//! Opening the log plays what it reads, and the log thread plays what it has just made durable, so
//! the two can't come to differ. Bodies of entries stay on disk; only their places are kept.
//!
//! The first segment there is may begin in the middle of things: what it and later ones say of
//! entries that stood in segments given up refers to nothing. So until the last record is played
//! there may be a gap between what is given up and the oldest entry; whoever has played
//! everything compares [`Persisted::first`] with [`Persisted::lowest`].

use std::collections::VecDeque;

use bytes::Bytes;

use super::format::Kind;

/// An index beyond this is damage: no cluster lives to see it, and counting on from it must not
/// overflow.
const INDEX_MAX: u64 = 1 << 62;

/// The place of a record: 16 bytes for each entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of its segment.
    pub segment: u64,
    /// Where it begins in the segment's file.
    pub offset: u32,
    /// Bytes of its header, body and padding.
    pub bytes: u32,
}

impl Place {
    /// Whether `next` lies right behind this.
    pub(super) fn meets(&self, next: &Self) -> bool {
        self.segment == next.segment && self.offset + self.bytes == next.offset
    }
}

/// A record as far as [`Persisted`] wants to know it.
#[derive(Debug)]
pub(super) struct Record {
    pub kind: Kind,
    pub index: u64,
    pub place: Place,
    /// The body; empty for an entry, whose body stays where it is.
    pub body: Bytes,
}

/// The outcome of all whole batches on disk.
#[derive(Debug, Default)]
pub(super) struct Persisted {
    /// The newest vote.
    pub vote: Option<Bytes>,
    /// The greatest index known to be committed.
    pub committed: Option<(u64, Bytes)>,
    /// The newest index given up, and the adapter's word for it.
    pub purged: Option<(u64, Bytes)>,
    /// Whether the last record says that the log was closed in good order.
    pub closed: bool,
    /// Whether any entry or truncation was met: until then any index may be the first.
    started: bool,
    /// The index of `places[0]`, or of the next entry while there is none.
    first: u64,
    places: VecDeque<Place>,
    live_bytes: u64,
}

impl Persisted {
    /// Plays one record. The error says how it contradicts those before it.
    pub(super) fn play(&mut self, record: Record) -> Result<(), String> {
        let Record { kind, index, place, body } = record;
        if index > INDEX_MAX {
            return Err(format!("index {index} is out of range"));
        }
        self.closed = kind == Kind::Closed;
        match kind {
            Kind::Closed => {}
            Kind::Vote => self.vote = Some(body),
            Kind::Committed => {
                if self.committed.as_ref().is_none_or(|(newest, _)| *newest <= index) {
                    self.committed = Some((index, body));
                }
            }
            Kind::Entry => {
                let fits = if self.started { index == self.next() } else { index >= self.lowest() };
                if !fits {
                    return Err(format!("entry {index} follows where {} should", self.next()));
                }
                if self.places.is_empty() {
                    self.first = index;
                }
                self.started = true;
                self.live_bytes += u64::from(place.bytes);
                self.places.push_back(place);
            }
            Kind::Truncate => {
                let (lowest, next) = (self.lowest(), self.next());
                if index < lowest || (self.started && index > next) {
                    return Err(format!("entries from {index} on are void, of {lowest} to {next}"));
                }
                self.truncate(index);
            }
            Kind::Purge => {
                self.purge(index);
                self.purged = Some((index, body));
            }
        }
        Ok(())
    }

    /// Whether the index of the next entry is certain.
    pub(super) fn started(&self) -> bool {
        self.started || self.purged.is_some()
    }

    /// The lowest index that is not given up.
    pub(super) fn lowest(&self) -> u64 {
        self.purged.as_ref().map_or(0, |(index, _)| index.saturating_add(1))
    }

    /// The index of the oldest entry, or of the next one while there is none.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// The index that the next entry will have.
    pub(super) fn next(&self) -> u64 {
        self.first + self.places.len() as u64
    }

    /// Bytes of records of the entries that there are.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Where the entry is, if it is there.
    pub(super) fn place(&self, index: u64) -> Option<Place> {
        let position = usize::try_from(index.checked_sub(self.first)?).ok()?;
        self.places.get(position).copied()
    }

    /// The segment of the oldest entry: those before it hold nothing that is needed. `None` while
    /// there are no entries.
    pub(super) fn first_segment(&self) -> Option<u64> {
        self.places.front().map(|place| place.segment)
    }

    fn truncate(&mut self, from: u64) {
        while self.next() > from {
            let Some(place) = self.places.pop_back() else { break };
            self.live_bytes -= u64::from(place.bytes);
        }
        if self.places.is_empty() {
            self.first = from;
        }
        self.started = true;
    }

    fn purge(&mut self, up_to: u64) {
        while self.first <= up_to {
            let Some(place) = self.places.pop_front() else {
                // A snapshot reaches beyond the log: the next entry follows the snapshot.
                self.first = up_to.saturating_add(1);
                break;
            };
            self.first += 1;
            self.live_bytes -= u64::from(place.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(persisted: &mut Persisted, kind: Kind, index: u64) -> Result<(), String> {
        let place = Place { segment: 1, offset: 512, bytes: 48 };
        persisted.play(Record { kind, index, place, body: Bytes::new() })
    }

    #[test]
    fn contradictions_are_refused() {
        let mut persisted = Persisted::default();
        for index in 5..9 {
            play(&mut persisted, Kind::Entry, index).unwrap();
        }
        play(&mut persisted, Kind::Entry, 8).unwrap_err();
        play(&mut persisted, Kind::Entry, 10).unwrap_err();
        play(&mut persisted, Kind::Purge, 6).unwrap();
        play(&mut persisted, Kind::Truncate, 6).unwrap_err();
        play(&mut persisted, Kind::Truncate, 10).unwrap_err();
        play(&mut persisted, Kind::Truncate, 8).unwrap();
        assert_eq!((persisted.first(), persisted.next(), persisted.live_bytes()), (7, 8, 48));
    }

    #[test]
    fn an_index_that_nobody_lives_to_see_is_refused() {
        for kind in [Kind::Entry, Kind::Committed, Kind::Truncate, Kind::Purge] {
            let mut persisted = Persisted::default();
            for index in [INDEX_MAX + 1, u64::MAX] {
                play(&mut persisted, kind, index).unwrap_err();
            }
            play(&mut persisted, kind, INDEX_MAX).unwrap();
            assert!(persisted.next() <= INDEX_MAX + 1);
        }
    }

    #[test]
    fn what_refers_to_segments_given_up_is_played_and_the_gap_shows_until_it_closes() {
        let mut persisted = Persisted::default();
        play(&mut persisted, Kind::Purge, 2).unwrap();
        play(&mut persisted, Kind::Entry, 20).unwrap();
        play(&mut persisted, Kind::Truncate, 10).unwrap();
        play(&mut persisted, Kind::Entry, 10).unwrap();
        assert!(persisted.first() > persisted.lowest());
        play(&mut persisted, Kind::Purge, 9).unwrap();
        assert_eq!((persisted.first(), persisted.lowest(), persisted.next()), (10, 10, 11));
    }
}
