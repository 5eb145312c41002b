//! Sets of categories, as bits.

use std::ops::Range;

/// Sets of numbers, each of which has a number itself.
#[derive(Default)]
pub struct BitSets {
    words: Vec<u32>,
    sets: Vec<Range<usize>>,
}

impl BitSets {
    /// The number of words of all sets.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    /// Adds words that sets can have parts of; returns where they are.
    pub fn extend(&mut self, words: impl IntoIterator<Item = u32>) -> Range<usize> {
        let start = self.words.len();
        self.words.extend(words);
        start..self.words.len()
    }

    /// Adds the set whose words are at `range`; returns its number.
    pub fn add(&mut self, range: Range<usize>) -> usize {
        self.sets.push(range);
        self.sets.len() - 1
    }

    /// Adds the set of `members`, which has one more word than the largest of them is a multiple of 32; returns its
    /// number.
    pub fn add_members(&mut self, members: &[u32]) -> usize {
        let largest = members.iter().copied().max().unwrap_or(0);
        let range = self.extend((0..=word_and_bit(largest).0).map(|_| 0));
        let words = self.words.get_mut(range.clone()).unwrap_or_default();
        for &member in members {
            let (word, bit) = word_and_bit(member);
            if let Some(word) = words.get_mut(word) {
                *word |= bit;
            }
        }
        self.add(range)
    }

    /// Whether `member` is in the set with the number `set`. A set that does not exist is empty.
    pub fn contains(&self, set: usize, member: u32) -> bool {
        let words = self.sets.get(set).and_then(|range| self.words.get(range.clone()));
        let (word, bit) = word_and_bit(member);
        words.and_then(|words| words.get(word)).is_some_and(|word| word & bit != 0)
    }
}

/// The index of the word and the bit of a number in its set.
pub fn word_and_bit(member: u32) -> (usize, u32) {
    ((member / u32::BITS) as usize, 1 << (member % u32::BITS))
}
