//! Vectors that stay encoded.

use std::borrow::Cow;
use std::marker::PhantomData;

use bytes::{BufMut, BytesMut};

use super::record::NULL;
use super::{Acl, ClientInfo, Input, Malformed, Record};

/// A vector of strings.
pub type Strings<'a> = List<'a, Option<&'a str>>;
/// A vector of ACLs.
pub type Acls<'a> = List<'a, Acl<'a>>;
/// A vector of what a connection has shown of itself.
pub type ClientInfos<'a> = List<'a, ClientInfo<'a>>;

/// A vector of records, or null. It keeps the bytes of its elements, each of which was decoded
/// once and is again whenever it is asked for; so a count costs nothing, and a long list that goes
/// to many clients is encoded once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<'a, T> {
    /// `None` for null.
    count: Option<usize>,
    elements: Cow<'a, [u8]>,
    kind: PhantomData<T>,
}

impl<T> List<'_, T> {
    /// No vector at all, which is not the same as an empty one.
    pub const NULL: Self = Self { count: None, elements: Cow::Borrowed(&[]), kind: PhantomData };
    /// A vector without elements.
    pub const EMPTY: Self =
        Self { count: Some(0), elements: Cow::Borrowed(&[]), kind: PhantomData };

    /// How many elements there are; none if it is null.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.unwrap_or(0)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.count.is_none()
    }
}

impl<'a, T: Record<'a>> List<'a, T> {
    /// Encodes these elements.
    pub fn of(elements: impl IntoIterator<Item = T>) -> Self {
        let mut count: usize = 0;
        let mut encoded = BytesMut::new();
        for element in elements {
            element.write(&mut encoded);
            count = count.saturating_add(1);
        }
        let elements = Cow::Owned(encoded.into());
        Self { count: Some(count), elements, kind: PhantomData }
    }

    /// The same, without a copy of it: to be sent once more.
    #[must_use]
    pub fn shared(&'a self) -> Self {
        Self { count: self.count, elements: Cow::Borrowed(&self.elements), kind: PhantomData }
    }

    /// Its elements, in order.
    pub fn iter(&'a self) -> impl Iterator<Item = T> + 'a
    where
        T: 'a,
    {
        let mut input = Input::new(&self.elements);
        (0..self.len()).map_while(move |_| input.read().ok())
    }
}

impl<'a, T: Record<'a>> Record<'a> for List<'a, T> {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        let count: i32 = input.read()?;
        if count == NULL {
            return Ok(Self::NULL);
        }
        // Other negative counts are taken for none, as by everybody.
        let count = usize::try_from(count).unwrap_or(0);
        let start = input.rest();
        for _ in 0..count {
            input.read::<T>()?;
        }
        let length = start.len().saturating_sub(input.rest().len());
        let elements = start.get(..length).ok_or(Malformed::Short)?;
        Ok(Self { count: Some(count), elements: Cow::Borrowed(elements), kind: PhantomData })
    }

    fn write(&self, out: &mut BytesMut) {
        match self.count {
            None => out.put_i32(NULL),
            // More don't fit in a frame, and whoever ends the frame refuses it.
            Some(count) => out.put_i32(i32::try_from(count).unwrap_or(i32::MAX)),
        }
        out.put_slice(&self.elements);
    }
}
