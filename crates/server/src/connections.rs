//! The connections there are: counted, limited, and waited for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The connections there are, and how many there may be.
#[derive(Debug)]
pub(crate) struct Connections {
    open: watch::Sender<usize>,
    max: usize,
    admitted: AtomicU64,
    turned_away: AtomicU64,
}

/// A place among the connections, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Admission {
    connections: Arc<Connections>,
    /// Its place among those of its address, where these are counted.
    seat: Option<Seat>,
}

impl Admission {
    /// Takes a place among those of an address, too.
    pub(crate) fn with(mut self, seat: Seat) -> Self {
        self.seat = Some(seat);
        self
    }
}

/// How many connections there are from each address, and may be.
#[derive(Clone, Debug)]
pub(crate) struct PerAddress {
    /// 0: any number.
    max: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A place among the connections of an address, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    address: IpAddr,
    of: PerAddress,
}

impl PerAddress {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, open: Arc::default() }
    }

    /// A place for one more from `address`, if there is room.
    pub(crate) fn sit(&self, address: IpAddr) -> Option<Seat> {
        let address = address.to_canonical();
        let mut open = self.open.lock();
        let count = open.entry(address).or_default();
        if self.max > 0 && *count >= self.max {
            return None;
        }
        *count += 1;
        Some(Seat { address, of: self.clone() })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.of.open.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

impl Connections {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            open: watch::Sender::new(0),
            max,
            admitted: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
        }
    }

    /// A place for one more, if there is room.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Admission> {
        let has_room = self.open.send_if_modified(|count| {
            let has_room = *count < self.max;
            *count += usize::from(has_room);
            has_room
        });
        let counter = if has_room { &self.admitted } else { &self.turned_away };
        counter.fetch_add(1, Ordering::Relaxed);
        has_room.then(|| Admission { connections: Arc::clone(self), seat: None })
    }

    /// How many there may be.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// How many there are, and every change of that.
    pub(crate) fn watch(&self) -> watch::Receiver<usize> {
        self.open.subscribe()
    }

    /// How many there are now.
    pub(crate) fn open_count(&self) -> usize {
        *self.open.borrow()
    }

    /// How many there have been.
    pub(crate) fn admitted_count(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    /// How many there was no room for.
    pub(crate) fn turned_away_count(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.connections.open.send_modify(|count| *count -= 1);
    }
}
