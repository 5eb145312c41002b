//! Text vectorizers: a column for each word, or for each of its hashes.
//!
//! * `analyzer` makes terms of a document: words, parts of words, and sequences of them;
//! * `pattern` finds words by a regular expression of Python's, whose idea of a word is in
//!   `alphanumeric`;
//! * `vectorizer` counts terms, and `tfidf` weights the counts;
//! * `accents` and `stop_words` remove what is not wanted.

mod accents;
mod alphanumeric;
mod analyzer;
mod murmur;
mod pattern;
mod stop_words;
mod tfidf;
mod vectorizer;

pub(super) use self::tfidf::read as tfidf_transformer;
pub(super) use self::vectorizer::{hashing, read as vectorizer};
