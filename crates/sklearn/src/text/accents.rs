//! The removal of accents (`strip_accents`).

use icu_normalizer::DecomposingNormalizerBorrowed;
use icu_normalizer::properties::CanonicalCombiningClassMapBorrowed;

/// How accents are removed from letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accents {
    Keep,
    /// Letters are decomposed, and all but ASCII is removed.
    Ascii,
    /// Letters are decomposed, and combining characters are removed.
    Unicode,
}

impl Accents {
    /// `text` without accents, in place.
    pub(super) fn strip(self, text: &mut String) {
        if self == Accents::Keep || text.is_ascii() {
            return;
        }
        let classes = CanonicalCombiningClassMapBorrowed::new();
        let decomposed = DecomposingNormalizerBorrowed::new_nfkd().normalize_iter(text.chars());
        *text = decomposed
            .filter(|c| match self {
                Accents::Ascii => c.is_ascii(),
                Accents::Unicode | Accents::Keep => classes.get_u8(*c) == 0,
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::Accents;

    #[test]
    fn accents_are_removed() {
        let strip = |accents: Accents, text: &str| {
            let mut text = text.to_owned();
            accents.strip(&mut text);
            text
        };
        let text = "\u{c9}t\u{e9} \u{fb01}n \u{df} \u{4e2d}";
        assert_eq!(strip(Accents::Unicode, text), "Ete fin \u{df} \u{4e2d}");
        assert_eq!(strip(Accents::Ascii, text), "Ete fin  ");
        assert_eq!(strip(Accents::Keep, text), text);
    }
}
