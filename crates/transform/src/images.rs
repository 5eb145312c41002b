//! Which objects are images, where a job takes images and its input has other files beside them.

use tensorserve_records::compression::Compression;

/// The endings of names of images.
const ENDINGS: [&str; 6] = ["bmp", "gif", "jpeg", "jpg", "png", "webp"];

/// How files of images begin: those that models usually decode, and others, which are theirs to refuse.
const BEGINNINGS: [&[u8]; 12] = [
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"BM",
    // TIFF.
    b"II*\0",
    b"MM\0*",
    // JPEG XL and JPEG 2000.
    b"\xff\x0a",
    b"\0\0\0\x0cJXL ",
    b"\0\0\0\x0cjP  ",
    // OpenEXR and Radiance.
    b"v/1\x01",
    b"#?RADIANCE",
];

/// Whether the name of an object says that it is an image, also a compressed one.
#[must_use]
pub fn is_named(key: &str) -> bool {
    let name = Compression::uncompressed_name(key);
    let is_ending = |ending: &str| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known));
    name.rsplit_once('.').is_some_and(|(_, ending)| is_ending(ending))
}

/// Whether a file begins as images do.
#[must_use]
pub fn is_image(content: &[u8]) -> bool {
    let has_kind = |kind: &[u8], at: usize| content.get(at..at + kind.len()) == Some(kind);
    BEGINNINGS.iter().any(|beginning| content.starts_with(beginning))
        || (content.starts_with(b"RIFF") && has_kind(b"WEBP", 8))
        // HEIC and AVIF.
        || has_kind(b"ftyp", 4)
        // Netpbm: P1 to P7 and white space.
        || matches!(content, [b'P', b'1'..=b'7', space, ..] if space.is_ascii_whitespace())
        || has_kind(b"DICM", 128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_known_by_name_and_by_look() {
        for name in ["a.png", "b/C.JPEG", "photo.jpg.gz", "x.y.webp.zst"] {
            assert!(is_named(name), "{name}");
        }
        for name in ["expected.json", "png", "a.png/readme", "x.gz", "a.pngx"] {
            assert!(!is_named(name), "{name}");
        }
        let mut dicom = vec![0; 128];
        dicom.extend_from_slice(b"DICM");
        for content in [&b"\xff\xd8\xff\xe0"[..], b"RIFF\x10\0\0\0WEBPVP8 ", b"P6\n2 2\n", &dicom] {
            assert!(is_image(content), "{content:?}");
        }
        for content in [&b""[..], b"{\"a\": 1}", b"RIFF\x10\0\0\0WAVE", b"P6", b"name,age\n", b"B"]
        {
            assert!(!is_image(content), "{content:?}");
        }
    }
}
