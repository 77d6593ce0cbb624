//! Enough of jute to ask and to understand: big-endian integers, buffers and strings with an i32
//! length (-1: null), vectors with an i32 count (-1: null).

/// A frame's body being written.
#[derive(Default)]
pub struct Out(pub Vec<u8>);

impl Out {
    pub fn i32(&mut self, value: i32) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.0.push(u8::from(value));
        self
    }

    pub fn buffer(&mut self, value: Option<&[u8]>) -> &mut Self {
        match value {
            None => self.i32(-1),
            Some(bytes) => {
                self.i32(bytes.len() as i32);
                self.0.extend_from_slice(bytes);
                self
            }
        }
    }

    pub fn string(&mut self, value: &str) -> &mut Self {
        self.buffer(Some(value.as_bytes()))
    }
}

/// A frame's body being read; `None` where it ends too early.
#[derive(Clone, Copy)]
pub struct In<'a>(pub &'a [u8]);

impl<'a> In<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    pub fn i32(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn i64(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    pub fn bool(&mut self) -> Option<bool> {
        Some(self.take(1)?[0] != 0)
    }

    /// `Some(None)` is a null buffer.
    pub fn buffer(&mut self) -> Option<Option<&'a [u8]>> {
        match self.i32()? {
            -1 => Some(None),
            length => Some(Some(self.take(usize::try_from(length).ok()?)?)),
        }
    }

    pub fn string(&mut self) -> Option<String> {
        Some(match self.buffer()? {
            None => "null".to_owned(),
            Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        })
    }

    /// `Some(None)` is a null vector.
    pub fn strings(&mut self) -> Option<Option<Vec<String>>> {
        match self.i32()? {
            -1 => Some(None),
            count => Some(Some((0..count).map(|_| self.string()).collect::<Option<_>>()?)),
        }
    }
}
