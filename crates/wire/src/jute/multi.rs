//! Several operations in one request, and how each of them went.

use std::borrow::Cow;
use std::marker::PhantomData;

use bytes::{BufMut, BytesMut};

use super::request::{CREATE_FLAGS_MAX, Check, Create, CreateOp, Delete, Read, SetData};
use super::{ErrorCode, Input, Malformed, MultiHeader, OpCode, Record, Stat, Strings};

/// Parts with a header each, and a header at the end. As a [`List`](super::List) it keeps their
/// bytes, and each part is decoded whenever it is asked for.
#[derive(Clone, Debug)]
pub struct Multi<'a, T> {
    count: usize,
    parts: Cow<'a, [u8]>,
    kind: PhantomData<T>,
}

/// What stands behind a [`MultiHeader`].
pub trait Part<'a>: Sized {
    /// What its header says that it is.
    fn op(&self) -> OpCode;

    /// What its header says of how it went.
    fn err(&self) -> i32;

    /// Reads its body, if it can be part of this kind of multi.
    ///
    /// # Errors
    ///
    /// [`Malformed`]: nothing of the multi is done.
    fn read_body(op: OpCode, input: &mut Input<'a>) -> Result<Self, Malformed>;

    /// Appends its body.
    fn write_body(&self, out: &mut BytesMut);
}

/// Part of a multi that writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op<'a> {
    /// In any of its four ways. The flags are among those that there are.
    Create(Create<'a>),
    /// As on its own.
    Delete(Delete<'a>),
    /// As on its own.
    SetData(SetData<'a>),
    /// Only here.
    Check(Check<'a>),
}

/// Part of a multi that reads. `watch` is said and not heeded: these reads leave no watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadOp<'a> {
    /// As on its own.
    GetData(Read<'a>),
    /// As on its own.
    GetChildren(Read<'a>),
}

/// How one part went, of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpResult<'a> {
    /// The path of what was created, to a plain create.
    Created {
        /// With its number, if it got one.
        path: Option<&'a str>,
    },
    /// The same and its stat, to the other ways of creating.
    CreatedWithStat {
        /// With its number, if it got one.
        path: Option<&'a str>,
        /// What it is like now.
        stat: Stat,
    },
    /// It is gone.
    Deleted,
    /// What it is like now.
    DataSet(Stat),
    /// It is so.
    Checked,
    /// The names of the children.
    Children(Strings<'a>),
    /// The data and the stat.
    Data {
        /// Null and empty are different.
        data: Option<&'a [u8]>,
        /// Of the same moment.
        stat: Stat,
    },
    /// How it failed. If one write fails, all did: those before it are told `OK` here, and those
    /// behind it `RUNTIME_INCONSISTENCY`.
    Failed(ErrorCode),
}

impl<T> Multi<'_, T> {
    /// How many parts there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none, which is legal.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<'a, T: Part<'a>> Multi<'a, T> {
    /// Encodes these parts.
    pub fn of(parts: impl IntoIterator<Item = T>) -> Self {
        let mut count: usize = 0;
        let mut encoded = BytesMut::new();
        for part in parts {
            MultiHeader { op: part.op(), done: false, err: part.err() }.write(&mut encoded);
            part.write_body(&mut encoded);
            count = count.saturating_add(1);
        }
        Self { count, parts: Cow::Owned(encoded.into()), kind: PhantomData }
    }

    /// Its parts, in order.
    pub fn iter(&'a self) -> impl Iterator<Item = T> + 'a
    where
        T: 'a,
    {
        let mut input = Input::new(&self.parts);
        (0..self.count).map_while(move |_| read_part(&mut input).ok().flatten())
    }
}

impl<'a, T: Part<'a>> Record<'a> for Multi<'a, T> {
    fn read(input: &mut Input<'a>) -> Result<Self, Malformed> {
        let start = input.rest();
        let mut count: usize = 0;
        loop {
            let length = start.len().saturating_sub(input.rest().len());
            if read_part::<T>(input)?.is_none() {
                let parts = start.get(..length).ok_or(Malformed::Short)?;
                return Ok(Self { count, parts: Cow::Borrowed(parts), kind: PhantomData });
            }
            count = count.saturating_add(1);
        }
    }

    fn write(&self, out: &mut BytesMut) {
        out.put_slice(&self.parts);
        MultiHeader { op: OpCode::ERROR, done: true, err: NO_ERR }.write(out);
    }
}

/// The same parts; what their headers say beside is not compared.
macro_rules! compared {
    ($($part:ident),*) => {$(
        impl PartialEq for Multi<'_, $part<'_>> {
            fn eq(&self, other: &Self) -> bool {
                self.count == other.count && self.iter().eq(other.iter())
            }
        }

        impl Eq for Multi<'_, $part<'_>> {}
    )*};
}

compared!(Op, ReadOp, OpResult);

/// The next part; `None` at the end.
fn read_part<'a, T: Part<'a>>(input: &mut Input<'a>) -> Result<Option<T>, Malformed> {
    let MultiHeader { op, done, err: _ } = input.read()?;
    if done { Ok(None) } else { T::read_body(op, input).map(Some) }
}

impl<'a> Part<'a> for Op<'a> {
    fn op(&self) -> OpCode {
        match self {
            Self::Create(create) => create.op.code(),
            Self::Delete(_) => OpCode::DELETE,
            Self::SetData(_) => OpCode::SET_DATA,
            Self::Check(_) => OpCode::CHECK,
        }
    }

    fn err(&self) -> i32 {
        NO_ERR
    }

    fn read_body(op: OpCode, input: &mut Input<'a>) -> Result<Self, Malformed> {
        if let Some(op) = CreateOp::of(op) {
            let create = Create::read_as(op, input)?;
            // Alone it would be refused; here it is no multi, but for the one that came last.
            return match create.flags {
                0..=CREATE_FLAGS_MAX => Ok(Self::Create(create)),
                _ if op == CreateOp::Ttl => Ok(Self::Create(create)),
                number => Err(Malformed::Choice { what: "the flags of a create", number }),
            };
        }
        match op {
            OpCode::DELETE => input.read().map(Self::Delete),
            OpCode::SET_DATA => input.read().map(Self::SetData),
            OpCode::CHECK => input.read().map(Self::Check),
            other => Err(not_a_part(other)),
        }
    }

    fn write_body(&self, out: &mut BytesMut) {
        match self {
            Self::Create(create) => create.write(out),
            Self::Delete(delete) => delete.write(out),
            Self::SetData(set) => set.write(out),
            Self::Check(check) => check.write(out),
        }
    }
}

impl<'a> Part<'a> for ReadOp<'a> {
    fn op(&self) -> OpCode {
        match self {
            Self::GetData(_) => OpCode::GET_DATA,
            Self::GetChildren(_) => OpCode::GET_CHILDREN,
        }
    }

    fn err(&self) -> i32 {
        NO_ERR
    }

    fn read_body(op: OpCode, input: &mut Input<'a>) -> Result<Self, Malformed> {
        match op {
            OpCode::GET_DATA => input.read().map(Self::GetData),
            OpCode::GET_CHILDREN => input.read().map(Self::GetChildren),
            other => Err(not_a_part(other)),
        }
    }

    fn write_body(&self, out: &mut BytesMut) {
        let (Self::GetData(read) | Self::GetChildren(read)) = self;
        read.write(out);
    }
}

impl<'a> Part<'a> for OpResult<'a> {
    fn op(&self) -> OpCode {
        match self {
            Self::Created { .. } => OpCode::CREATE,
            Self::CreatedWithStat { .. } => OpCode::CREATE2,
            Self::Deleted => OpCode::DELETE,
            Self::DataSet(_) => OpCode::SET_DATA,
            Self::Checked => OpCode::CHECK,
            Self::Children(_) => OpCode::GET_CHILDREN,
            Self::Data { .. } => OpCode::GET_DATA,
            Self::Failed(_) => OpCode::ERROR,
        }
    }

    fn err(&self) -> i32 {
        if let Self::Failed(error) = self { error.0 } else { ErrorCode::OK.0 }
    }

    fn read_body(op: OpCode, input: &mut Input<'a>) -> Result<Self, Malformed> {
        Ok(match op {
            OpCode::CREATE => Self::Created { path: input.read()? },
            OpCode::CREATE2 => Self::CreatedWithStat { path: input.read()?, stat: input.read()? },
            OpCode::DELETE => Self::Deleted,
            OpCode::SET_DATA => Self::DataSet(input.read()?),
            OpCode::CHECK => Self::Checked,
            OpCode::GET_CHILDREN => Self::Children(input.read()?),
            OpCode::GET_DATA => Self::Data { data: input.read()?, stat: input.read()? },
            OpCode::ERROR => Self::Failed(input.read()?),
            other => return Err(not_a_part(other)),
        })
    }

    fn write_body(&self, out: &mut BytesMut) {
        match self {
            Self::Created { path } => path.write(out),
            Self::CreatedWithStat { path, stat } => {
                path.write(out);
                stat.write(out);
            }
            Self::Deleted | Self::Checked => {}
            Self::DataSet(stat) => stat.write(out),
            Self::Children(names) => names.write(out),
            Self::Data { data, stat } => {
                data.write(out);
                stat.write(out);
            }
            Self::Failed(error) => error.write(out),
        }
    }
}

fn not_a_part(op: OpCode) -> Malformed {
    Malformed::Choice { what: "an operation of such a multi", number: op.0 }
}

/// In the header of what can't have failed.
const NO_ERR: i32 = -1;
