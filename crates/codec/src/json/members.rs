//! The names of an object's members.

use std::borrow::Cow;

use super::scan::Cursor;

/// The names of the members of an object, in order, up to its end or to malformed JSON. Their values are
/// skipped.
pub struct MemberNames<'a> {
    cursor: Cursor<'a>,
    state: MembersState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MembersState {
    Start,
    AtValue,
    End,
}

impl<'a> MemberNames<'a> {
    /// The names of the object at `cursor`; none for any other value.
    #[must_use]
    pub fn of(cursor: Cursor<'a>) -> Self {
        MemberNames { cursor, state: MembersState::Start }
    }

    /// Moves to the next name; `None` at the end.
    fn advance(&mut self) -> Option<Cow<'a, [u8]>> {
        let more = match self.state {
            MembersState::Start => self.cursor.peek() == b'{' && self.cursor.open_object().ok()?,
            MembersState::AtValue => {
                self.cursor.skip_value().ok()?;
                self.cursor.next_member().ok()?
            }
            MembersState::End => false,
        };
        if more { self.cursor.name().ok() } else { None }
    }
}

impl<'a> Iterator for MemberNames<'a> {
    type Item = Cow<'a, [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        let name = self.advance();
        self.state = if name.is_some() { MembersState::AtValue } else { MembersState::End };
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_where_the_object_does() {
        for (text, want) in [
            (r#"{"a": {"x": [1, 2]}, "b\u0041" : 3 , "a":4} tail"#, vec!["a", "bA", "a"]),
            (r#"{"a": 1, "b": [2"#, vec!["a", "b"]),
            (r#"{"a": 1, 2}"#, vec!["a"]),
            ("{}", vec![]),
            ("[1]", vec![]),
            ("", vec![]),
        ] {
            let names: Vec<Vec<u8>> =
                MemberNames::of(Cursor::new(text.as_bytes())).map(Cow::into_owned).collect();
            let want: Vec<&[u8]> = want.into_iter().map(str::as_bytes).collect();
            assert_eq!(names, want, "{text}");
        }
    }
}
