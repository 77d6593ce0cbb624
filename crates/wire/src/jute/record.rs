//! Fields: how integers, strings and buffers stand in a frame.

use std::fmt;

use bytes::{BufMut, BytesMut};

/// The bytes of a frame that have not been read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Reads `bytes` from their beginning.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// What has not been read yet.
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// The next field or record.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: what was read until then stays read.
    pub fn read<T: Record<'a>>(&mut self) -> Result<T, Malformed> {
        T::read(self)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*taken)
    }
}

/// What has a place in a frame: a field, or a record of fields.
pub trait Record<'a>: Sized {
    /// Reads it from the front of `input`.
    ///
    /// # Errors
    ///
    /// [`Malformed`], whatever the bytes are; never a panic.
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed>;

    /// Appends it.
    fn write(&self, out: &mut BytesMut);
}

/// A frame's bytes are not the record that they should be. The other side caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The frame ends within a field, or before a length that it promises.
    #[error("the frame ends in the middle of a field")]
    Short,
    /// A string or buffer of a negative length, other than null's -1.
    #[error("a length of {0}")]
    Length(i32),
    /// A string that is not UTF-8.
    #[error("text that is not UTF-8")]
    Text,
    /// A number that stands for one of several things, and for none of them.
    #[error("{what} can't be {number}")]
    Choice {
        /// What it chooses.
        what: &'static str,
        /// The number that was sent.
        number: i32,
    },
}

/// A buffer that is nobody's business: a password, or a step of a login. Its `Debug` hides it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Hidden<'a>(pub Option<&'a [u8]>);

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("null"),
            Some(bytes) => write!(f, "<{} bytes>", bytes.len()),
        }
    }
}

impl<'a> Record<'a> for Hidden<'a> {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        input.read().map(Self)
    }

    fn write(&self, out: &mut BytesMut) {
        self.0.write(out);
    }
}

impl<'a> Record<'a> for bool {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        Ok(input.take::<1>()? != [0])
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_u8((*self).into());
    }
}

impl<'a> Record<'a> for i32 {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        input.take().map(Self::from_be_bytes)
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_i32(*self);
    }
}

impl<'a> Record<'a> for i64 {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        input.take().map(Self::from_be_bytes)
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_i64(*self);
    }
}

impl<'a> Record<'a> for Option<&'a [u8]> {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        let length: i32 = input.read()?;
        if length == NULL {
            return Ok(None);
        }
        let bytes = usize::try_from(length).map_err(|_| Malformed::Length(length))?;
        let (taken, rest) = input.0.split_at_checked(bytes).ok_or(Malformed::Short)?;
        input.0 = rest;
        Ok(Some(taken))
    }

    fn write(&self, out: &mut BytesMut) {
        match self {
            None => out.put_i32(NULL),
            Some(bytes) => {
                // Longer ones don't fit in a frame, and whoever ends the frame refuses it.
                out.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
                out.put_slice(bytes);
            }
        }
    }
}

impl<'a> Record<'a> for Option<&'a str> {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        let bytes: Option<&[u8]> = input.read()?;
        bytes.map(str::from_utf8).transpose().map_err(|_| Malformed::Text)
    }

    fn write(&self, out: &mut BytesMut) {
        self.map(str::as_bytes).write(out);
    }
}

/// The length of what is null.
pub(super) const NULL: i32 = -1;

/// A record: the struct, and its fields in the order in which they are sent.
macro_rules! record {
    (
        $(#[$attribute:meta])*
        $name:ident $(<$life:lifetime>)? {
            $($(#[$about:meta])* $field:ident: $kind:ty,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name $(<$life>)? {
            $($(#[$about])* pub $field: $kind,)*
        }

        impl<'a> $crate::jute::Record<'a> for $name $(<$life>)? {
            fn read(
                input: &mut $crate::jute::Input<'a>,
            ) -> Result<Self, $crate::jute::Malformed> {
                // Fields of a struct expression are evaluated in the order they are written.
                Ok(Self { $($field: input.read()?,)* })
            }

            fn write(&self, out: &mut bytes::BytesMut) {
                $($crate::jute::Record::write(&self.$field, out);)*
            }
        }
    };
}

/// A number that chooses among a few things; any other is malformed.
macro_rules! choice {
    (
        $(#[$attribute:meta])*
        $name:ident ($what:literal) { $($(#[$about:meta])* $variant:ident = $number:literal,)* }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i32)]
        pub enum $name {
            $($(#[$about])* $variant = $number,)*
        }

        impl<'a> $crate::jute::Record<'a> for $name {
            fn read(
                input: &mut $crate::jute::Input<'a>,
            ) -> Result<Self, $crate::jute::Malformed> {
                match input.read()? {
                    $($number => Ok(Self::$variant),)*
                    number => Err($crate::jute::Malformed::Choice { what: $what, number }),
                }
            }

            fn write(&self, out: &mut bytes::BytesMut) {
                (*self as i32).write(out);
            }
        }
    };
}

pub(super) use {choice, record};
