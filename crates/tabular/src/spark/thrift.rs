//! Thrift's compact protocol, in which Parquet describes itself: as much of it as is read here.

/// A value. What nobody asks for is skipped, and not kept.
#[derive(Debug)]
pub(super) enum Value<'b> {
    Flag(bool),
    Integer(i64),
    Bytes(&'b [u8]),
    List(Vec<Value<'b>>),
    Struct(Vec<(i16, Value<'b>)>),
    /// A number with a fraction, or a map.
    Other,
}

/// How deep values may be nested; Parquet needs seven.
const MAX_DEPTH: usize = 12;

impl<'b> Value<'b> {
    /// The struct at the start of `bytes`, and the bytes behind it. `None` if they are damaged.
    pub(super) fn read(bytes: &'b [u8]) -> Option<(Value<'b>, &'b [u8])> {
        let mut reader = Reader { bytes };
        let value = reader.structure(0)?;
        Some((value, reader.bytes))
    }

    /// Field number `id` of a struct.
    pub(super) fn field(&self, id: i16) -> Option<&Value<'b>> {
        match self {
            Value::Struct(fields) => fields.iter().find(|(at, _)| *at == id).map(|(_, v)| v),
            Value::Flag(_)
            | Value::Integer(_)
            | Value::Bytes(_)
            | Value::List(_)
            | Value::Other => None,
        }
    }

    pub(super) fn integer(&self, id: i16) -> Option<i64> {
        match self.field(id) {
            Some(Value::Integer(number)) => Some(*number),
            _ => None,
        }
    }

    /// A number that counts or measures something.
    pub(super) fn size(&self, id: i16) -> Option<usize> {
        usize::try_from(self.integer(id)?).ok()
    }

    pub(super) fn flag(&self, id: i16) -> Option<bool> {
        match self.field(id) {
            Some(Value::Flag(flag)) => Some(*flag),
            _ => None,
        }
    }

    pub(super) fn list(&self, id: i16) -> Option<&[Value<'b>]> {
        match self.field(id) {
            Some(Value::List(values)) => Some(values),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&'b str> {
        match self {
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            Value::Flag(_)
            | Value::Integer(_)
            | Value::List(_)
            | Value::Struct(_)
            | Value::Other => None,
        }
    }
}

/// A number of 7 bits in each byte, least first, and the bytes behind it.
pub(super) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let (mut number, mut shift) = (0u64, 0);
    loop {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
        shift += 7;
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
}

impl<'b> Reader<'b> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*byte)
    }

    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    /// A number in zigzag.
    #[allow(clippy::cast_possible_wrap)] // That is how it is written.
    fn signed(&mut self) -> Option<i64> {
        let number = varint(&mut self.bytes)?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn structure(&mut self, depth: usize) -> Option<Value<'b>> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut fields = Vec::new();
        let mut id = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(Value::Struct(fields));
            }
            id = match head >> 4 {
                0 => i16::try_from(self.signed()?).ok()?,
                more => id.checked_add(i16::from(more))?,
            };
            let value = match head & 0x0f {
                1 => Value::Flag(true),
                2 => Value::Flag(false),
                kind => self.value(kind, depth)?,
            };
            fields.push((id, value));
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Option<Value<'b>> {
        match kind {
            // A truth value in a list.
            1 | 2 => Some(Value::Flag(self.byte()? == 1)),
            3 => Some(Value::Integer(i64::from(self.byte()?.cast_signed()))),
            4..=6 => Some(Value::Integer(self.signed()?)),
            7 => self.take(8).map(|_| Value::Other),
            8 => {
                let length = usize::try_from(varint(&mut self.bytes)?).ok()?;
                Some(Value::Bytes(self.take(length)?))
            }
            9 | 10 => self.list(depth + 1),
            11 => self.map(depth + 1),
            12 => self.structure(depth + 1),
            _ => None,
        }
    }

    fn list(&mut self, depth: usize) -> Option<Value<'b>> {
        if depth > MAX_DEPTH {
            return None;
        }
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => usize::try_from(varint(&mut self.bytes)?).ok()?,
            few => usize::from(few),
        };
        let mut values = Vec::new();
        for _ in 0..count {
            // Every value takes a byte at least, so the list is no longer than what is left.
            values.push(self.value(head & 0x0f, depth)?);
        }
        Some(Value::List(values))
    }

    fn map(&mut self, depth: usize) -> Option<Value<'b>> {
        if depth > MAX_DEPTH {
            return None;
        }
        let count = varint(&mut self.bytes)?;
        if count > 0 {
            let kinds = self.byte()?;
            for _ in 0..count {
                self.value(kinds >> 4, depth)?;
                self.value(kinds & 0x0f, depth)?;
            }
        }
        Some(Value::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_are_read_and_damage_is_seen() {
        // {1: 3, 2: "ab", 3: true, 5: [1, -1]}
        let bytes = [0x15, 6, 0x18, 2, b'a', b'b', 0x11, 0x29, 0x25, 2, 1, 0, 9];
        let (value, rest) = Value::read(&bytes).expect("a struct");
        assert_eq!(rest, [9]);
        assert_eq!((value.integer(1), value.flag(3)), (Some(3), Some(true)));
        assert_eq!(value.field(2).and_then(Value::text), Some("ab"));
        assert!(matches!(value.list(5), Some([Value::Integer(1), Value::Integer(-1)])));
        for length in 0..bytes.len() - 1 {
            assert!(Value::read(&bytes[..length]).is_none());
        }
        assert!(Value::read(&[0x1c; 100]).is_none());
    }
}
