//! Thrift's compact protocol, in which Parquet stores its metadata, as far as Parquet needs it.
//!
//! Specification: <https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md>.

/// The types of values.
mod wire_type {
    /// Ends a struct.
    pub(super) const STOP: u8 = 0;
    /// A boolean field of a struct has its value as its type; elsewhere it is a byte.
    pub(super) const BOOLEAN_TRUE: u8 = 1;
    pub(super) const BOOLEAN_FALSE: u8 = 2;
    pub(super) const BYTE: u8 = 3;
    pub(super) const I16: u8 = 4;
    pub(super) const I32: u8 = 5;
    pub(super) const I64: u8 = 6;
    pub(super) const DOUBLE: u8 = 7;
    pub(super) const BINARY: u8 = 8;
    pub(super) const LIST: u8 = 9;
    pub(super) const SET: u8 = 10;
    pub(super) const MAP: u8 = 11;
    pub(super) const STRUCT: u8 = 12;
}

/// The bits of a byte that hold a type. The others hold a field id's difference, a count, or the type
/// of a map's keys.
const TYPE_BITS: u8 = 0x0f;

/// How far the other bits are shifted.
const UPPER_SHIFT: u32 = 4;

/// A count that does not fit into four bits: it follows as a varint.
const LONG_COUNT: u8 = 15;

/// The bits of a byte of a varint that hold its value, and the bit that announces another byte.
const VARINT_BITS: u8 = 0x7f;
const VARINT_CONTINUES: u8 = 0x80;

/// How deep values may be nested; Parquet needs seven levels.
const MAX_DEPTH: usize = 12;

/// A value. Those of types that are not needed are skipped.
#[derive(Debug)]
pub(super) enum ThriftValue<'b> {
    Boolean(bool),
    Integer(i64),
    Binary(&'b [u8]),
    List(Vec<ThriftValue<'b>>),
    /// Fields with their ids.
    Struct(Vec<(i16, ThriftValue<'b>)>),
    /// A double or a map.
    Skipped,
}

impl<'b> ThriftValue<'b> {
    /// Reads the struct at the start of `bytes`; also returns the bytes behind it. `None` if they are
    /// damaged.
    pub(super) fn read_struct(bytes: &'b [u8]) -> Option<(ThriftValue<'b>, &'b [u8])> {
        let mut reader = ThriftReader { bytes };
        let value = reader.read_struct(0)?;
        Some((value, reader.bytes))
    }

    /// The field `id` of a struct.
    pub(super) fn field(&self, id: i16) -> Option<&ThriftValue<'b>> {
        let ThriftValue::Struct(fields) = self else { return None };
        fields.iter().find(|(field, _)| *field == id).map(|(_, value)| value)
    }

    /// The integer field `id` of a struct.
    pub(super) fn integer(&self, id: i16) -> Option<i64> {
        match self.field(id) {
            Some(ThriftValue::Integer(number)) => Some(*number),
            _ => None,
        }
    }

    /// The field `id` of a struct, a count or a size.
    pub(super) fn size(&self, id: i16) -> Option<usize> {
        usize::try_from(self.integer(id)?).ok()
    }

    /// The boolean field `id` of a struct.
    pub(super) fn boolean(&self, id: i16) -> Option<bool> {
        match self.field(id) {
            Some(ThriftValue::Boolean(value)) => Some(*value),
            _ => None,
        }
    }

    /// The list field `id` of a struct.
    pub(super) fn list(&self, id: i16) -> Option<&[ThriftValue<'b>]> {
        match self.field(id) {
            Some(ThriftValue::List(values)) => Some(values),
            _ => None,
        }
    }

    /// As text.
    pub(super) fn text(&self) -> Option<&'b str> {
        let ThriftValue::Binary(bytes) = self else { return None };
        std::str::from_utf8(bytes).ok()
    }
}

/// Reads a varint (ULEB128) at the start of `bytes`, which become the bytes behind it.
pub(super) fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let (mut number, mut shift) = (0u64, 0);
    loop {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & VARINT_BITS).checked_shl(shift)?;
        if byte & VARINT_CONTINUES == 0 {
            return Some(number);
        }
        shift += VARINT_BITS.count_ones();
    }
}

struct ThriftReader<'b> {
    bytes: &'b [u8],
}

impl<'b> ThriftReader<'b> {
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

    /// Reads a length, a varint.
    fn read_length(&mut self) -> Option<usize> {
        usize::try_from(read_varint(&mut self.bytes)?).ok()
    }

    /// Reads a signed integer: a varint in zigzag encoding.
    #[allow(clippy::cast_possible_wrap)] // Zigzag.
    fn read_signed(&mut self) -> Option<i64> {
        let number = read_varint(&mut self.bytes)?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn read_struct(&mut self, depth: usize) -> Option<ThriftValue<'b>> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut fields = Vec::new();
        let mut id = 0i16;
        loop {
            let header = self.byte()?;
            if header == wire_type::STOP {
                return Some(ThriftValue::Struct(fields));
            }
            // The difference to the id before; 0 if the id follows.
            id = match header >> UPPER_SHIFT {
                0 => i16::try_from(self.read_signed()?).ok()?,
                difference => id.checked_add(i16::from(difference))?,
            };
            let value = match header & TYPE_BITS {
                wire_type::BOOLEAN_TRUE => ThriftValue::Boolean(true),
                wire_type::BOOLEAN_FALSE => ThriftValue::Boolean(false),
                kind => self.read_value(kind, depth)?,
            };
            fields.push((id, value));
        }
    }

    /// Reads a value of type `kind`, other than a boolean field of a struct.
    fn read_value(&mut self, kind: u8, depth: usize) -> Option<ThriftValue<'b>> {
        match kind {
            wire_type::BOOLEAN_TRUE | wire_type::BOOLEAN_FALSE => {
                Some(ThriftValue::Boolean(self.byte()? == wire_type::BOOLEAN_TRUE))
            }
            wire_type::BYTE => Some(ThriftValue::Integer(i64::from(self.byte()?.cast_signed()))),
            wire_type::I16 | wire_type::I32 | wire_type::I64 => {
                Some(ThriftValue::Integer(self.read_signed()?))
            }
            wire_type::DOUBLE => self.take(size_of::<f64>()).map(|_| ThriftValue::Skipped),
            wire_type::BINARY => {
                let length = self.read_length()?;
                Some(ThriftValue::Binary(self.take(length)?))
            }
            wire_type::LIST | wire_type::SET => self.read_list(depth + 1),
            wire_type::MAP => self.skip_map(depth + 1),
            wire_type::STRUCT => self.read_struct(depth + 1),
            _ => None,
        }
    }

    fn read_list(&mut self, depth: usize) -> Option<ThriftValue<'b>> {
        if depth > MAX_DEPTH {
            return None;
        }
        let header = self.byte()?;
        let count = match header >> UPPER_SHIFT {
            LONG_COUNT => self.read_length()?,
            short => usize::from(short),
        };
        let mut values = Vec::new();
        for _ in 0..count {
            // Each value takes at least a byte, so that a wrong count ends with the bytes.
            values.push(self.read_value(header & TYPE_BITS, depth)?);
        }
        Some(ThriftValue::List(values))
    }

    fn skip_map(&mut self, depth: usize) -> Option<ThriftValue<'b>> {
        if depth > MAX_DEPTH {
            return None;
        }
        let count = read_varint(&mut self.bytes)?;
        if count > 0 {
            let kinds = self.byte()?;
            for _ in 0..count {
                self.read_value(kinds >> UPPER_SHIFT, depth)?;
                self.read_value(kinds & TYPE_BITS, depth)?;
            }
        }
        Some(ThriftValue::Skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_are_read_and_damaged_ones_refused() {
        // {1: 3, 2: "ab", 3: true, 5: [1, -1]}
        let bytes = [0x15, 6, 0x18, 2, b'a', b'b', 0x11, 0x29, 0x25, 2, 1, 0, 9];
        let (value, rest) = ThriftValue::read_struct(&bytes).expect("a struct");
        assert_eq!(rest, [9]);
        assert_eq!((value.integer(1), value.boolean(3)), (Some(3), Some(true)));
        assert_eq!(value.field(2).and_then(ThriftValue::text), Some("ab"));
        assert!(matches!(value.list(5), Some([ThriftValue::Integer(1), ThriftValue::Integer(-1)])));
        for length in 0..bytes.len() - 1 {
            assert!(ThriftValue::read_struct(&bytes[..length]).is_none());
        }
        assert!(ThriftValue::read_struct(&[0x1c; 100]).is_none());
    }
}
