"""text_normalizer: normalizes text, counts its words and hashes it; accepts any bytes."""

import tensorflow as tf

from common import export, load, output_root


def normalise(text):
    # Bytes that are not UTF-8 become U+FFFD; the ops below need valid text.
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
    # Control characters count as blanks. NUL is removed: lower() would stop at it.
    text = tf.strings.regex_replace(text, r"[\pZ\p{Cc}]+", " ")
    text = tf.strings.strip(text)
    # The Unicode op follows the locale of the process (a Turkish one turns I into
    # a dotless i), so lower ASCII first with the op that does not.
    text = tf.strings.lower(text)
    return tf.strings.lower(text, encoding="utf-8")


def count_tokens(normalized):
    without_blanks = tf.strings.regex_replace(normalized, " ", "")
    blanks = tf.strings.length(normalized) - tf.strings.length(without_blanks)
    return tf.where(tf.equal(normalized, ""), 0, blanks + 1)


class TextNormalizer(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serve(self, text):
        normalized = normalise(text)
        return {
            "normalized": normalized,
            "token_count": count_tokens(normalized),
            "hash": tf.strings.to_hash_bucket_fast(normalized, 2**31 - 1),
        }


def main():
    folder = output_root() / "models/text_normalizer/1"
    export(TextNormalizer(), folder)
    print("text_normalizer:", load(folder)(text=["  Hello\t WORLD ", b"caf\xc9", "ÉTÉ"]))


if __name__ == "__main__":
    main()
