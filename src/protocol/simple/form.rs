//! Forms of text fields, as browsers send them (`application/x-www-form-urlencoded`).

use crate::protocol::percent_decoded;

/// The first value of field `name`, decoded; what is no UTF-8 is replaced.
pub(super) fn field(form: &[u8], name: &str) -> Option<String> {
    let form = String::from_utf8_lossy(form);
    let decoded = |text: &str| percent_decoded(&text.replace('+', " "));
    let fields = form.split('&').map(|field| field.split_once('=').unwrap_or((field, "")));
    let mut found = fields.filter(|(key, _)| decoded(key) == name);
    found.next().map(|(_, value)| decoded(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_decoded() {
        let form = b"a=1+2%2B3&b%5B%5D=%C3%A9&a=later&c&d=%FF&e=%4";
        let read = |name| field(form, name);
        assert_eq!(read("a").as_deref(), Some("1 2+3"));
        assert_eq!(read("b[]").as_deref(), Some("é"));
        assert_eq!(read("c").as_deref(), Some(""));
        assert_eq!(read("d").as_deref(), Some("\u{fffd}"));
        assert_eq!(read("e").as_deref(), Some("%4"));
        assert_eq!(read("f"), None);
    }
}
