//! Media types: `Content-Type` and `Accept`.

/// The media type in a `Content-Type` header, in lower case and without parameters.
#[must_use]
pub fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// What `of` returns for the preferred media type of an `Accept` header: among the types for which it
/// returns `Some`, the one with the highest weight; among equal weights, the first.
pub fn first_choice<T>(accept: &str, of: impl Fn(&str) -> Option<T>) -> Option<T> {
    let (mut best, mut choice) = (0.0, None);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        let weight = weight.unwrap_or(1.0);
        if weight > best
            && let Some(known) = of(&name)
        {
            (best, choice) = (weight, Some(known));
        }
    }
    choice
}
