//! Forms of text fields, as browsers send them (`application/x-www-form-urlencoded`), and queries.

use crate::percent_decoded;

/// Names and values of the fields, decoded, in their order; what is no UTF-8 is replaced.
pub fn fields(form: &str) -> impl Iterator<Item = (String, String)> {
    let decoded = |text: &str| percent_decoded(&text.replace('+', " "));
    let fields = form.split('&').map(|field| field.split_once('=').unwrap_or((field, "")));
    fields.map(move |(name, value)| (decoded(name), decoded(value)))
}

/// The first value of field `name`.
pub fn field(form: &[u8], name: &str) -> Option<String> {
    let form = String::from_utf8_lossy(form);
    fields(&form).find(|(key, _)| key == name).map(|(_, value)| value)
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
