//! Requests without an answer, by their consecutive numbers.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use bytes::BytesMut;
use lockkeeper_wire::native::{Request, request};

use super::{NewsTo, ReplyTo};
use crate::clock::Boottime;
use crate::error::Error;
use crate::socket::write_frame;

/// Requests by their consecutive numbers. Answered ones leave a gap until the floor passes it.
pub(super) struct Window {
    /// The number of the first slot; that slot is never a gap.
    floor: u64,
    slots: VecDeque<Option<Open>>,
}

impl Default for Window {
    fn default() -> Self {
        Self { floor: 1, slots: VecDeque::new() }
    }
}

impl Window {
    /// Gives a request its number.
    pub(super) fn push(
        &mut self,
        mut request: Box<Request>,
        reply: Option<ReplyTo>,
        news: Option<NewsTo>,
        since: Boottime,
    ) -> u64 {
        let id = self.end();
        request.id = id;
        let (unavailable, is_abandoned) = (None, false);
        let open = Open { request, reply, news, since, unavailable, is_abandoned };
        self.slots.push_back(Some(open));
        id
    }

    /// The lowest number without an answer.
    pub(super) const fn floor(&self) -> u64 {
        self.floor
    }

    /// The number that the next request gets.
    pub(super) fn end(&self) -> u64 {
        self.floor + self.slots.len() as u64
    }

    /// Numbers from the floor to the end, answered ones included.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Open> {
        self.slots.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Open> {
        self.slots.iter_mut().flatten()
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Open> {
        self.slots.drain(..).flatten()
    }

    fn slot(&mut self, number: u64) -> Option<&mut Option<Open>> {
        let index = usize::try_from(number.checked_sub(self.floor)?).ok()?;
        self.slots.get_mut(index)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Open> {
        self.slot(number)?.as_mut()
    }

    /// Takes a request out because it is settled; the floor moves past it.
    pub(super) fn take(&mut self, number: u64) -> Option<Open> {
        let open = self.slot(number)?.take();
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.floor += 1;
        }
        open
    }

    /// Appends a request, with the floor of now, if it is still open.
    pub(super) fn write(&mut self, number: u64, out: &mut BytesMut) {
        let floor = self.floor;
        if let Some(open) = self.get_mut(number) {
            open.request.floor = floor;
            write_frame(&open.request, out);
        }
    }
}

/// A request without an answer.
pub(super) struct Open {
    /// In a box: it is large, and handed on often before it gets here.
    pub(super) request: Box<Request>,
    pub(super) reply: Option<ReplyTo>,
    pub(super) news: Option<NewsTo>,
    /// When it was made, for its caller's patience.
    pub(super) since: Boottime,
    /// What a server said when it couldn't serve it.
    pub(super) unavailable: Option<Error>,
    /// Its caller is gone, and its cancel follows it.
    pub(super) is_abandoned: bool,
}

impl Open {
    /// The name of the lock that is asked for; the request isn't sent again.
    pub(super) fn take_lock(&mut self) -> String {
        match self.request.body.take() {
            Some(request::Body::Acquire(acquire)) => acquire.lock,
            Some(request::Body::Reenter(reenter)) => reenter.lock,
            _ => String::new(),
        }
    }
}

pub(super) type NumberMap<T> = HashMap<u64, T, BuildHasherDefault<NumberHasher>>;

/// Spreads numbers that are mostly consecutive and all our own; nobody can choose them to collide.
#[derive(Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // An odd multiplier (2⁶⁴ divided by the golden ratio) keeps the low bits distinct, which
        // choose the bucket, and mixes the high ones, which tell the entries of a bucket apart.
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
