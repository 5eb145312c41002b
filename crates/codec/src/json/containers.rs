//! The lists and objects around a value.

#[derive(Clone, Copy)]
pub(super) enum JsonContainer {
    Array,
    Object,
}

/// The open containers around a value, one bit each: 1 is an object.
#[derive(Default)]
pub(super) struct ContainerStack {
    words: Vec<u64>,
    len: usize,
}

const WORD_BITS: usize = u64::BITS as usize;

impl ContainerStack {
    pub(super) fn push(&mut self, container: JsonContainer) {
        if self.len.is_multiple_of(WORD_BITS) {
            self.words.push(0);
        }
        let mask = 1 << (self.len % WORD_BITS);
        if let Some(word) = self.words.last_mut() {
            *word = match container {
                JsonContainer::Array => *word & !mask,
                JsonContainer::Object => *word | mask,
            };
        }
        self.len += 1;
    }

    pub(super) fn top(&self) -> Option<JsonContainer> {
        let last = self.len.checked_sub(1)?;
        let is_object = self.words.last()? >> (last % WORD_BITS) & 1 == 1;
        Some(if is_object { JsonContainer::Object } else { JsonContainer::Array })
    }

    pub(super) fn pop(&mut self) {
        self.len = self.len.saturating_sub(1);
        self.words.truncate(self.len.div_ceil(WORD_BITS));
    }
}
